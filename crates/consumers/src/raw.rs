//! The raw dialect: a frame is a message body, and nothing is sent back.

use std::pin::pin;

use futures::{SinkExt as _, StreamExt as _};
use protocol::close::CloseCode;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::behaviour::Behaviour;
use crate::dial::socket_cause;
use crate::farewell::{bounded, goodbye, see_off};
use crate::policy::End;
use crate::tally::Marks;
use crate::world::{Outcome, World};

/// Receives until the connection ends; says goodbye when the shutdown begins. The ways out are boxed: they come once
/// and would be the largest part of what every idle connection costs.
pub(crate) async fn serve<S>(
    world: &World,
    outcome: &mut Outcome,
    behaviour: Behaviour,
    socket: &mut WebSocketStream<S>,
) -> End
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut begun = pin!(world.shutdown.begun());
    if behaviour == Behaviour::Stall {
        begun.await;
        return End::Left;
    }
    let patience = world.idle_timeout.unwrap_or_default();
    let mut heard_at = Instant::now();
    let mut silence = pin!(sleep_until(heard_at + patience));
    loop {
        tokio::select! {
            item = socket.next() => {
                heard_at = Instant::now();
                if let Some(end) = on_item(world, outcome, item).await {
                    if matches!(end, End::Closed { .. }) {
                        Box::pin(see_off(world, socket)).await;
                    }
                    return end;
                }
            }
            () = &mut begun => return Box::pin(leave(world, outcome, socket)).await,
            () = &mut silence, if world.idle_timeout.is_some() => {
                // The timer is moved only when it fires: once a minute instead of at each frame.
                if heard_at.elapsed() >= patience {
                    return End::Silent;
                }
                silence.as_mut().reset(heard_at + patience);
            }
        }
    }
}

async fn on_item(world: &World, outcome: &mut Outcome, item: Option<Result<Message, Error>>) -> Option<End> {
    let news = match item {
        Some(Ok(Message::Text(text))) => outcome.on_body(world, text.as_bytes(), Marks::default(), None),
        Some(Ok(Message::Binary(body))) => outcome.on_body(world, &body, Marks::default(), None),
        Some(Ok(Message::Close(frame))) => return Some(End::of_close_frame(frame)),
        // tungstenite answers pings itself with the next read.
        Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => None,
        Some(Err(error)) => return Some(End::Broken(socket_cause(&error))),
        None => return Some(End::without_close_frame()),
    };
    if let Some(event) = news {
        world.tell(event).await;
    }
    None
}

/// Our goodbye. What the server had already written is still counted: it is settled there.
async fn leave<S>(world: &World, outcome: &mut Outcome, socket: &mut WebSocketStream<S>) -> End
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    bounded(world, async {
        if socket.send(goodbye(CloseCode::Normal)).await.is_err() {
            return;
        }
        loop {
            let item = socket.next().await;
            let over = matches!(item, None | Some(Err(_)));
            on_item(world, outcome, item).await;
            if over {
                return;
            }
        }
    })
    .await;
    End::Left
}
