//! A vhost per test: the shipped definitions under another name, so that a wrong permission or policy shows.

mod api;
mod faults;
pub mod frames;
mod probe;
mod publish;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use reqwest::Method;
use serde_json::{Map, Value, json};

pub use probe::{Channel, Connection, Consumer, Queue, Snapshot};
pub use publish::{Message, Outcome, Publisher};

use crate::node::Node;
use api::Api;

/// A fresh vhost with the exchanges, the permissions and the policy that the repository ships. Clones share it; it is
/// deleted, and everything in it, with the last one.
#[derive(Clone)]
pub struct Vhost(Arc<Inner>);

struct Inner {
    name: String,
    node: Node,
    api: Api,
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Vhost {
    /// Makes one on `node`.
    ///
    /// # Panics
    /// The broker refuses the definitions.
    pub async fn new(node: &Node) -> Vhost {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("rig-{}-{number}-{:08x}", std::process::id(), rand::random::<u32>());
        Vhost::named(node, &name).await
    }

    /// Makes one with a name of the test's choice.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub async fn named(node: &Node, name: &str) -> Vhost {
        let api = Api::of(node);
        let vhost = Vhost(Arc::new(Inner { name: name.to_owned(), node: node.clone(), api }));
        vhost.api().call(Method::POST, &["definitions"], Some(&in_vhost(name))).await;
        vhost
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The node that it is on.
    pub fn node(&self) -> &Node {
        &self.0.node
    }

    /// The URL for one of the shipped users (`producer`, `auth-proxy`, `admin`), each with its name as password.
    pub fn amqp_url(&self, user: &str) -> String {
        self.amqp_url_at(user, &format!("127.0.0.1:{}", self.node().amqp_port()))
    }

    /// As [`amqp_url`](Self::amqp_url), with another address: that of a relay.
    pub fn amqp_url_at(&self, user: &str, address: &str) -> String {
        format!("amqp://{user}:{user}@{address}/{}", api::encoded(self.name()))
    }

    /// Other limits: each change replaces an entry of the shipped policy (`expires` in ms, `max-length`,
    /// `max-length-bytes`, `overflow`), and null removes it. Set before the queues are declared: a queue that exists
    /// takes it a moment later.
    ///
    /// # Panics
    /// The broker refuses it.
    pub async fn set_policy(&self, changes: Value) {
        let mut policy = shipped().get("policies").and_then(|all| all.get(0)).cloned().expect("the policy is shipped");
        let definition = policy.get_mut("definition").and_then(Value::as_object_mut).expect("the policy is an object");
        let Value::Object(changes) = changes else { panic!("a policy is an object, not {changes}") };
        for (entry, value) in changes {
            if value.is_null() {
                definition.remove(&entry);
            } else {
                definition.insert(entry, value);
            }
        }
        let name = policy.get("name").and_then(Value::as_str).expect("the policy has a name").to_owned();
        self.api().call(Method::PUT, &["policies", self.name(), &name], Some(&policy)).await;
    }

    fn api(&self) -> &Api {
        &self.0.api
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.api.delete_blocking(&["vhosts", &self.name]);
    }
}

fn shipped() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../rabbit_definitions.json");
    let text = fs::read_to_string(&path).expect("rabbit_definitions.json can be read");
    serde_json::from_str(&text).expect("rabbit_definitions.json is JSON")
}

/// The shipped definitions with another vhost. Without the users, which are the whole node's.
fn in_vhost(name: &str) -> Value {
    let mut all: Map<String, Value> = serde_json::from_value(shipped()).expect("rabbit_definitions.json is an object");
    all.remove("users");
    all.insert("vhosts".to_owned(), json!([{"name": name}]));
    for list in all.values_mut().filter_map(Value::as_array_mut) {
        for item in list.iter_mut().filter_map(Value::as_object_mut) {
            if let Some(vhost) = item.get_mut("vhost") {
                *vhost = json!(name);
            }
        }
    }
    Value::Object(all)
}
