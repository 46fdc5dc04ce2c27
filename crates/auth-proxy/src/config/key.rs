//! Which key tokens are checked with, and whether it may be used where the proxy listens.

use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use protocol::token::DEVELOPMENT_KEY;
use secrecy::{ExposeSecret, SecretString};

use crate::args::TokenArgs;

/// RFC 7518, section 3.2: a key for HS256 must have at least the 256 bits of the hash. A shorter one can be found by trial
/// from any one token.
const SECRET_BYTES_MIN: usize = 32;

/// A secret file above this is no secret: a wrong path, or a device.
const SECRET_FILE_BYTES_MAX: u64 = 64 * 1024;

/// A key and what its user should be told about it.
#[derive(Debug)]
pub(super) struct SigningKey {
    pub(super) secret: SecretString,
    pub(super) warnings: Vec<String>,
}

/// Why there is no key that may be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Two secrets.
    #[error("--jwt-secret and --jwt-secret-file (or JWT_SECRET and JWT_SECRET_FILE) are both set; set one of them")]
    Two,
    /// A secret without a byte.
    #[error("{origin} holds an empty secret; put at least 32 bytes there, or unset it to use the development key")]
    Empty {
        /// Where it came from.
        origin: Origin,
    },
    /// The file cannot be read.
    #[error("--jwt-secret-file {path:?} cannot be read ({error}); name a file that this user may read")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file is not a secret.
    #[error("--jwt-secret-file {0:?} is not UTF-8 text of at most 64 KiB; put the secret there as text")]
    NotText(PathBuf),
    /// A guessable secret where others can reach the proxy.
    #[error(
        "{origin} holds a secret of {bytes} bytes, which can be guessed: on {listen}, which is not loopback, at least 32 \
         bytes are needed; make one with: openssl rand -base64 32"
    )]
    Short {
        /// Where it came from.
        origin: Origin,
        /// Its length.
        bytes: usize,
        /// Where the proxy would listen.
        listen: SocketAddr,
    },
    /// The public key where others can reach the proxy.
    #[error(
        "without a secret of its own the proxy would accept tokens signed with the public development key on {0}, which is \
         not loopback; set --jwt-secret-file (or JWT_SECRET), or allow it with --development-key"
    )]
    DevelopmentKeyExposed(SocketAddr),
}

/// Where a secret came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `--jwt-secret` or `JWT_SECRET`.
    Option,
    /// `--jwt-secret-file` or `JWT_SECRET_FILE`.
    File(PathBuf),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Option => f.write_str("--jwt-secret (JWT_SECRET)"),
            Origin::File(path) => write!(f, "--jwt-secret-file {path:?}"),
        }
    }
}

impl SigningKey {
    /// The configured secret, else the development key.
    ///
    /// On a loopback address everything goes, with a warning where one is due. Elsewhere a secret that can be guessed is
    /// refused, and the public key needs to be asked for by name, also when it was configured as if it were a secret.
    pub(super) fn choose(args: &TokenArgs, listen: SocketAddr) -> Result<Self, KeyError> {
        let configured = match (&args.jwt_secret, &args.jwt_secret_file) {
            (Some(_), Some(_)) => return Err(KeyError::Two),
            (Some(secret), None) => Some((Origin::Option, secret.clone())),
            (None, Some(path)) => Some((Origin::File(path.clone()), read(path)?)),
            (None, None) => None,
        };
        match configured {
            Some((origin, secret)) if secret.expose_secret() != DEVELOPMENT_KEY => {
                Self::configured(origin, secret, args.development_key, listen)
            }
            _ => Self::development(args.development_key, listen),
        }
    }

    fn configured(origin: Origin, secret: SecretString, flag: bool, listen: SocketAddr) -> Result<Self, KeyError> {
        let bytes = secret.expose_secret().len();
        let mut warnings = Vec::new();
        if bytes == 0 {
            return Err(KeyError::Empty { origin });
        }
        if bytes < SECRET_BYTES_MIN {
            if !is_loopback(listen) {
                return Err(KeyError::Short { origin, bytes, listen });
            }
            warnings.push(format!(
                "{origin} holds a secret of {bytes} bytes, which can be guessed; on an address that is not loopback at least \
                 {SECRET_BYTES_MIN} are needed"
            ));
        }
        if flag {
            warnings.push(format!("--development-key has no effect: {origin} holds a secret"));
        }
        Ok(SigningKey { secret, warnings })
    }

    fn development(flag: bool, listen: SocketAddr) -> Result<Self, KeyError> {
        let warning = match (is_loopback(listen), flag) {
            (true, _) => {
                "the public development key is in use: everybody can sign tokens that this proxy accepts; set \
                          JWT_SECRET_FILE (or JWT_SECRET) before anybody else can reach it"
                    .to_owned()
            }
            (false, true) => format!(
                "THE PUBLIC DEVELOPMENT KEY IS IN USE ON {listen}, WHICH IS NOT LOOPBACK: whoever reaches this proxy can read \
                 every mailbox; set JWT_SECRET_FILE (or JWT_SECRET)"
            ),
            (false, false) => return Err(KeyError::DevelopmentKeyExposed(listen)),
        };
        Ok(SigningKey { secret: SecretString::from(DEVELOPMENT_KEY), warnings: vec![warning] })
    }
}

/// Also true of the IPv4 loopback written as an IPv6 address.
fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// The text of a secret file without its line end, which editors and `echo` add and no issuer signs with.
fn read(path: &Path) -> Result<SecretString, KeyError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(SECRET_FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(|error| KeyError::Unreadable { path: path.to_owned(), error })?;
    let not_text = || KeyError::NotText(path.to_owned());
    if u64::try_from(bytes.len()).is_ok_and(|length| length > SECRET_FILE_BYTES_MAX) {
        return Err(not_text());
    }
    let text = String::from_utf8(bytes).map_err(|_| not_text())?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    Ok(SecretString::from(text))
}
