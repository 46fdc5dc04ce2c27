//! CPU time as Linux counts it, in /proc.

use std::{fs, io, ops::Sub};

/// Ticks a second in /proc: `USER_HZ`, which is 100 wherever Rust runs Linux.
const TICKS: f64 = 100.0;

/// CPU seconds since some beginning; what counts is the difference of two.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cpu {
    /// In the program itself.
    pub user: f64,
    /// In the kernel on its behalf.
    pub system: f64,
}

impl Cpu {
    /// Of a process and all its threads.
    ///
    /// # Errors
    /// There is no such process, or this is not Linux.
    pub fn of(pid: u32) -> io::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        process(&stat).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat: {stat}")))
    }

    /// Of everything on this machine, and what it lent to others. Interrupts are left out: those of the network between
    /// our own processes are among them.
    ///
    /// # Errors
    /// This is not Linux.
    pub fn of_all() -> io::Result<Self> {
        let stat = fs::read_to_string("/proc/stat")?;
        machine(&stat).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/stat has no line cpu"))
    }

    /// Both together.
    pub fn total(self) -> f64 {
        self.user + self.system
    }
}

impl Sub for Cpu {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self { user: self.user - earlier.user, system: self.system - earlier.system }
    }
}

/// `utime` and `stime` (proc(5)): the twelfth and thirteenth behind the name, which may hold anything.
fn process(stat: &str) -> Option<Cpu> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut ticks = rest.split_whitespace().skip(11).map(|field| field.parse::<f64>().ok());
    Some(Cpu { user: ticks.next()?? / TICKS, system: ticks.next()?? / TICKS })
}

/// `user nice system idle iowait irq softirq steal` (proc(5)).
fn machine(stat: &str) -> Option<Cpu> {
    let fields = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<f64> = fields.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, _irq, _softirq, steal, ..] = ticks[..] else { return None };
    Some(Cpu { user: (user + nice + steal) / TICKS, system: system / TICKS })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_those_of_the_manual_whatever_the_name_is() {
        let stat = "26998 (beam) 1 (x) S 1 2 3 0 -1 4194560 10 20 30 40 250 150 7 8 20 0 25 0 100 0 0";
        assert_eq!(process(stat), Some(Cpu { user: 2.5, system: 1.5 }));
        assert_eq!(process("1 (short) S 1 2"), None);
        let stat = "cpu  100 50 300 1000 10 1 2 25 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(machine(stat), Some(Cpu { user: 1.75, system: 3.0 }));
        assert_eq!(machine("cpu0 1 2 3\n"), None);
    }
}
