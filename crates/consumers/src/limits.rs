//! What this machine allows: file descriptors and local ports. Reaching them is no fault of the server,
//! so they are named, with their numbers, and counted apart.

use std::collections::HashMap;
use std::fmt;
use std::io;

use nix::errno::Errno;
use service::descriptors::{self, Limit};

use crate::config::Config;

/// Descriptors beside the sockets: standard streams, the runtime's, name lookups.
const DESCRIPTORS_BESIDE: u64 = 64;

/// Why this machine opened no socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LocalCause {
    /// EMFILE: this process has no descriptor left.
    Descriptors,
    /// ENFILE: the whole machine has none left.
    DescriptorsOfMachine,
    /// EADDRNOTAVAIL: no local port is left for that destination.
    Ports,
}

impl LocalCause {
    /// The local cause of a failed connect, if it has one.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<Self> {
        match Errno::from_raw(error.raw_os_error()?) {
            Errno::EMFILE => Some(Self::Descriptors),
            Errno::ENFILE => Some(Self::DescriptorsOfMachine),
            Errno::EADDRNOTAVAIL => Some(Self::Ports),
            _ => None,
        }
    }
}

impl fmt::Display for LocalCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Descriptors => match descriptors::limit() {
                Some(Limit { soft, .. }) => {
                    write!(f, "no file descriptor left (EMFILE, this process may have {soft})")
                }
                None => f.write_str("no file descriptor left (EMFILE)"),
            },
            Self::DescriptorsOfMachine => f.write_str("no file descriptor left on this machine (ENFILE)"),
            Self::Ports => match local_ports() {
                Some((first, last)) => {
                    let count = u32::from(last.saturating_sub(first)) + 1;
                    write!(f, "no local port left (EADDRNOTAVAIL, {first} to {last} are {count} for each --url)")
                }
                None => f.write_str("no local port left (EADDRNOTAVAIL)"),
            },
        }
    }
}

/// Raises the soft limit of descriptors as far as `config` needs and the hard limit allows. Returns the
/// warnings for what will still be short, each with its numbers.
#[must_use]
pub fn prepare(config: &Config) -> Vec<String> {
    let needed = config.total().saturating_add(DESCRIPTORS_BESIDE);
    descriptors_short(needed, descriptors::raise(needed)).into_iter().chain(ports_short(config)).collect()
}

fn descriptors_short(needed: u64, limit: Option<Limit>) -> Option<String> {
    let Limit { soft, hard } = limit.filter(|limit| limit.soft < needed)?;
    Some(format!(
        "this process may have {soft} file descriptors (hard limit {hard}) and needs some {needed}; \
         raise it with `ulimit -n {needed}` or start fewer instances"
    ))
}

fn ports_short(config: &Config) -> Option<String> {
    let (first, last) = local_ports()?;
    let ports = u64::from(last.saturating_sub(first)) + 1;
    let mut ways: HashMap<(&str, u16), u64> = HashMap::new();
    let targets = config.targets.len() as u64;
    for target in &config.targets {
        *ways.entry((&target.host, target.port)).or_default() += config.total().div_ceil(targets);
    }
    let most = ways.values().copied().max().filter(|most| *most > ports)?;
    Some(format!(
        "{most} connections go to one address and there are {ports} local ports for it ({first} to {last}); \
         give more --url addresses or widen net.ipv4.ip_local_port_range"
    ))
}

/// Linux says it; elsewhere nothing is known beforehand.
fn local_ports() -> Option<(u16, u16)> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut numbers = text.split_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_causes_are_told_from_the_servers() {
        let of = |errno: Errno| LocalCause::of(&io::Error::from_raw_os_error(errno as i32));
        assert_eq!(of(Errno::EMFILE), Some(LocalCause::Descriptors));
        assert_eq!(of(Errno::ENFILE), Some(LocalCause::DescriptorsOfMachine));
        assert_eq!(of(Errno::EADDRNOTAVAIL), Some(LocalCause::Ports));
        assert_eq!(of(Errno::ECONNREFUSED), None);
        assert_eq!(LocalCause::of(&io::Error::other("no number")), None);
    }

    #[test]
    fn the_warning_says_what_is_there_and_what_is_needed() {
        let warning = descriptors_short(1_064, Some(Limit { soft: 512, hard: 1_024 })).unwrap();
        for number in ["512", "1024", "1064"] {
            assert!(warning.contains(number), "{warning}");
        }
        assert_eq!(descriptors_short(1_064, Some(Limit { soft: 1_064, hard: 4_096 })), None);
    }
}
