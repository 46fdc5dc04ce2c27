use serde::{Deserialize, de::DeserializeOwned};
use serde_json::error::Category;

use super::{ClientFrame, ServerFrame, Token};

/// Why a frame cannot be read. The text never quotes the frame, which may hold a token, and fits into a close reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a frame of rabbitmq-msg.v1: {0}")]
pub struct FrameError(Fault);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Fault {
    #[error("no JSON object")]
    NoObject,
    #[error("bad JSON at line {line}, column {column}")]
    Json { line: usize, column: usize },
    #[error("unknown type")]
    UnknownType,
    #[error("{0} is missing, of the wrong kind, or there twice")]
    Field(&'static str),
}

#[derive(Deserialize)]
struct Type {
    r#type: String,
}

#[derive(Deserialize)]
struct Ack {
    seq: u64,
}

#[derive(Deserialize)]
struct Nack {
    seq: u64,
    #[serde(default = "yes")]
    requeue: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
struct Refresh {
    token: String,
}

/// Two readings, first the type and then its fields, since serde's own way with a `type` builds a tree of the whole
/// frame: each `0,` of a stranger's field takes 32 bytes there, and what is to be ignored can be an error (`1e999`, a
/// lone surrogate, 128 brackets).
pub(super) fn client(text: &str) -> Result<ClientFrame<'static>, FrameError> {
    match object::<Type>(text, "type")?.r#type.as_str() {
        "ack" => object(text, "seq").map(|Ack { seq }| ClientFrame::Ack { seq }),
        "nack" => object(text, "seq or requeue").map(|Nack { seq, requeue }| ClientFrame::Nack { seq, requeue }),
        "refresh" => object(text, "token").map(|Refresh { token }| ClientFrame::Refresh { token: Token(token.into()) }),
        "ping" => Ok(ClientFrame::Ping),
        _ => Err(FrameError(Fault::UnknownType)),
    }
}

pub(super) fn server(text: &str) -> Result<ServerFrame<'static>, FrameError> {
    let frame = object(text, "the type is unknown, or a field")?;
    match &frame {
        ServerFrame::Message(message) if message.body.is_some() == message.body_base64.is_some() => {
            Err(FrameError(Fault::Field("body")))
        }
        _ => Ok(frame),
    }
}

/// `what` it is about if the JSON is good and the fields are not.
fn object<T: DeserializeOwned>(text: &str, what: &'static str) -> Result<T, FrameError> {
    // serde would take `["ack", 1]`, too.
    if !text.trim_start_matches([' ', '\t', '\n', '\r']).starts_with('{') {
        return Err(FrameError(Fault::NoObject));
    }
    serde_json::from_str(text).map_err(|error| {
        FrameError(match error.classify() {
            Category::Data => Fault::Field(what),
            Category::Syntax | Category::Eof | Category::Io => {
                Fault::Json { line: error.line(), column: error.column() }
            }
        })
    })
}
