//! RabbitMQ's management API, as its administrator.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Client, Method, StatusCode};
use serde_json::Value;

use crate::node::Node;

/// A vhost with thousands of queues takes seconds to delete.
const DEADLINE: Duration = Duration::from_secs(60);

pub(super) struct Api {
    // Not shared between tests: its connections belong to the runtime of one.
    client: Client,
    address: SocketAddr,
    password: String,
}

impl Api {
    pub(super) fn of(node: &Node) -> Api {
        let client = Client::builder().timeout(DEADLINE).no_proxy().build().expect("an HTTP client");
        let password = std::env::var("BROKER_ADMIN_PASSWORD").unwrap_or_else(|_| "admin".to_owned());
        Api { client, address: (Ipv4Addr::LOCALHOST, node.management_port()).into(), password }
    }

    /// Calls and returns the body; a status other than 2xx fails.
    pub(super) async fn call(&self, method: Method, path: &[&str], body: Option<&Value>) -> String {
        let (status, answer) = self.try_call(method.clone(), path, body).await;
        assert!(status.is_success(), "{method} {path:?} at the management API: {status}: {answer}");
        answer
    }

    pub(super) async fn try_call(&self, method: Method, path: &[&str], body: Option<&Value>) -> (StatusCode, String) {
        let url = format!("http://{}{}", self.address, path_of(path));
        let mut request = self.client.request(method, url).basic_auth("admin", Some(&self.password));
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.expect("the management API answers");
        let status = response.status();
        (status, response.text().await.expect("the management API answers in full"))
    }

    /// For destructors: blocks, and leaves what cannot be deleted (the node may be gone) to the end of the node.
    pub(super) fn delete_blocking(&self, path: &[&str]) {
        let login = STANDARD.encode(format!("admin:{}", self.password));
        let request = format!(
            "DELETE {} HTTP/1.1\r\nHost: {}\r\nAuthorization: Basic {login}\r\nConnection: close\r\n\r\n",
            path_of(path),
            self.address
        );
        let deleted = TcpStream::connect_timeout(&self.address, DEADLINE).and_then(|mut stream| {
            stream.set_read_timeout(Some(DEADLINE))?;
            stream.write_all(request.as_bytes())?;
            stream.read_to_end(&mut Vec::new())
        });
        let _ = deleted;
    }
}

fn path_of(parts: &[&str]) -> String {
    parts.iter().fold("/api".to_owned(), |path, part| path + "/" + &encoded(part))
}

pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}
