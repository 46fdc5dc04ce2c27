//! The ways out of a connection. Each waits a bounded time for the server, and none once the shutdown is forced.

use futures::{SinkExt as _, StreamExt as _};
use protocol::close::CloseCode;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

use crate::world::World;

/// After the server's close frame: sends the answer and lets the server close first, so that the port waits out its
/// TIME_WAIT there and not here.
pub(crate) async fn see_off<S>(world: &World, socket: &mut WebSocketStream<S>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    bounded(world, async { while let Some(Ok(_)) = socket.next().await {} }).await;
}

/// We end it, with this code; what still comes is read and dropped until the server has closed.
pub(crate) async fn turn_away<S>(world: &World, socket: &mut WebSocketStream<S>, code: CloseCode)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    bounded(world, say_goodbye(socket, code)).await;
}

/// We leave, after a last word; says whether that is out. All of it has the time of one goodbye.
pub(crate) async fn leave<S>(world: &World, socket: &mut WebSocketStream<S>, last_word: Option<String>) -> bool
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut sent = false;
    bounded(world, async {
        if let Some(text) = last_word {
            sent = socket.send(Message::Text(text.into())).await.is_ok();
        }
        say_goodbye(socket, CloseCode::Normal).await;
    })
    .await;
    sent
}

async fn say_goodbye<S>(socket: &mut WebSocketStream<S>, code: CloseCode)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if socket.send(goodbye(code)).await.is_ok() {
        while let Some(Ok(_)) = socket.next().await {}
    }
}

/// A close frame of ours.
pub(crate) fn goodbye(code: CloseCode) -> Message {
    let reason = if code == CloseCode::Normal { "" } else { code.reason() };
    Message::Close(Some(CloseFrame { code: code.code().into(), reason: reason.into() }))
}

/// Gives `way_out` the time that a goodbye has.
pub(crate) async fn bounded(world: &World, way_out: impl Future<Output = ()>) {
    tokio::select! {
        _ = timeout(world.close_timeout, way_out) => {}
        () = world.shutdown.forced() => {}
    }
}
