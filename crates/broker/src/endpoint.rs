//! One broker URL.
//!
//! URLs go through a URL crate first: the AMQP client's own parser takes `amqp://[::1]` for localhost and an
//! empty path for the vhost `""`, where every user means `/`.

use std::fmt;

use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use percent_encoding::percent_decode_str;
use url::Url;

/// The port of AMQP 0-9-1 without TLS (IANA).
const AMQP_PORT: u16 = 5672;
/// AMQP carries names as short strings: at most this many bytes.
const NAME_BYTES_MAX: usize = 255;

/// Where a broker is and who we are there. Its `Display` and `Debug` never show the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    user: String,
    password: String,
    host: String,
    port: u16,
    vhost: String,
}

/// Why a broker URL is refused. Never holds the password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// No URL at all.
    #[error("no broker URL given; use for example amqp://127.0.0.1:5672/%2f")]
    Empty,
    /// Not a URL, or a part of it cannot be understood.
    #[error(
        "broker URL is malformed ({0}); use amqp://USER:PASSWORD@HOST:PORT/VHOST, percent-encoding what is special"
    )]
    Malformed(String),
    /// A scheme other than `amqp`.
    #[error("broker URL has the scheme {0:?}; use amqp://")]
    Scheme(String),
}

impl Endpoint {
    /// Parses `amqp://[user[:password]@]host[:port][/vhost]`. Without a user, `default_user` is both user and
    /// password; an empty path, `/` and `/%2f` all mean the vhost `/`.
    pub fn parse(text: &str, default_user: &str) -> Result<Self, EndpointError> {
        let malformed = |what: &str| EndpointError::Malformed(what.to_owned());
        let url = Url::parse(text.trim()).map_err(|error| malformed(&error.to_string()))?;
        if url.scheme() != "amqp" {
            return Err(EndpointError::Scheme(url.scheme().to_owned()));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(malformed("it has a query or a fragment; settings are options of the program"));
        }
        let decode = |part: &str, what: &str| {
            percent_decode_str(part)
                .decode_utf8()
                .map(std::borrow::Cow::into_owned)
                .map_err(|_| malformed(&format!("the {what} is not UTF-8")))
        };
        let (user, password) = match (url.username(), url.password()) {
            ("", None) => (default_user.to_owned(), default_user.to_owned()),
            (user, password) => (decode(user, "user")?, decode(password.unwrap_or(""), "password")?),
        };
        let host = match url.host_str() {
            None | Some("") => return Err(malformed("it has no host")),
            Some(host) => decode(host.trim_start_matches('[').trim_end_matches(']'), "host")?,
        };
        let path = url.path().strip_prefix('/').unwrap_or("");
        if path.contains('/') {
            return Err(malformed("its path has more than one part; write a / in a vhost name as %2f"));
        }
        let vhost = match decode(path, "vhost")? {
            vhost if vhost.is_empty() => "/".to_owned(),
            vhost if vhost.len() > NAME_BYTES_MAX => return Err(malformed("the vhost has more than 255 bytes")),
            vhost => vhost,
        };
        Ok(Self { user, password, host, port: url.port().unwrap_or(AMQP_PORT), vhost })
    }

    /// The user that this endpoint logs in as.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The vhost.
    pub fn vhost(&self) -> &str {
        &self.vhost
    }

    pub(crate) fn to_uri(&self, heartbeat_s: u16) -> AMQPUri {
        AMQPUri {
            scheme: AMQPScheme::AMQP,
            authority: AMQPAuthority {
                userinfo: AMQPUserInfo { username: self.user.clone(), password: self.password.clone() },
                host: self.host.clone(),
                port: self.port,
            },
            vhost: self.vhost.clone(),
            query: AMQPQueryString { heartbeat: Some(heartbeat_s), ..AMQPQueryString::default() },
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let vhost = if self.vhost == "/" { "%2f".to_owned() } else { self.vhost.replace('/', "%2f") };
        write!(f, "amqp://{}@{host}:{}/{}", self.user.escape_debug(), self.port, vhost.escape_debug())
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

/// Parses a list of broker URLs, each item of which may itself hold several, separated by commas.
pub fn parse_list(urls: &[String], default_user: &str) -> Result<Vec<Endpoint>, EndpointError> {
    let endpoints = urls
        .iter()
        .flat_map(|item| item.split(','))
        .map(str::trim)
        .filter(|url| !url.is_empty())
        .map(|url| Endpoint::parse(url, default_user))
        .collect::<Result<Vec<_>, _>>()?;
    if endpoints.is_empty() { Err(EndpointError::Empty) } else { Ok(endpoints) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Endpoint {
        Endpoint::parse(text, "producer").unwrap()
    }

    #[test]
    fn an_empty_path_a_slash_and_its_encoding_are_the_vhost_slash() {
        for url in ["amqp://h", "amqp://h/", "amqp://h/%2f", "amqp://h/%2F"] {
            assert_eq!(parse(url).vhost, "/", "{url}");
        }
        assert_eq!(parse("amqp://h/a%2fb").vhost, "a/b");
    }

    #[test]
    fn a_url_without_user_takes_the_default_user() {
        let endpoint = parse("amqp://127.0.0.1");
        assert_eq!((endpoint.user.as_str(), endpoint.password.as_str(), endpoint.port), ("producer", "producer", 5672));
    }

    #[test]
    fn special_characters_in_a_password_are_decoded_and_never_shown() {
        let endpoint = parse("amqp://u:p%40%2F%25%23x@h:1/%2f");
        assert_eq!(endpoint.password, "p@/%#x");
        assert_eq!(endpoint.to_string(), "amqp://u@h:1/%2f");
        assert!(!format!("{endpoint:?}").contains("p@"));
    }

    #[test]
    fn ipv6_is_an_address_not_localhost() {
        let endpoint = parse("amqp://[::1]:5673/v");
        assert_eq!((endpoint.host.as_str(), endpoint.port), ("::1", 5673));
        assert_eq!(endpoint.to_string(), "amqp://producer@[::1]:5673/v");
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        assert!(matches!(Endpoint::parse("http://h", "u"), Err(EndpointError::Scheme(_))));
        for url in
            ["", "127.0.0.1:5672", "amqp://", "amqp:///v", "amqp://h/a/b", "amqp://h/v?heartbeat=1", "amqp://h:99999"]
        {
            assert!(Endpoint::parse(url, "u").is_err(), "{url}");
        }
        assert_eq!(parse_list(&[String::new()], "u"), Err(EndpointError::Empty));
    }

    #[test]
    fn a_list_may_be_repeated_or_comma_separated() {
        let urls = ["amqp://a,amqp://b".to_owned(), "amqp://c".to_owned()];
        assert_eq!(parse_list(&urls, "u").unwrap().len(), 3);
    }
}
