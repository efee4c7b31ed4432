//! What two sides say to each other about their queue pairs, over the first socket of their connection: one message each,
//! several times, until a deadline. After a step that either has refused the stream is at the same place for both, so that
//! the connection can go on without queue pairs.

use super::offer::{NotSaid, OFFER_BYTES, Offer, STEP_BYTES, Said, Step};
use super::{NoVerbs, Reason, Stop, Trouble};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::time::{Duration, Instant};

/// A socket, and how far both are.
pub(super) struct Talk {
    pub socket: OwnedFd,
    /// Everything is over by then.
    deadline: Instant,
    /// This side does without TCP.
    pub requires: bool,
    /// The other side does.
    pub is_required: bool,
    /// What the other side has said to the next step although this side was busy with it.
    early: Option<Said<()>>,
}

/// Why waiting is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// One of the descriptors may be ready.
    Ready,
    /// The time is over.
    Late,
}

impl Talk {
    pub fn new(socket: OwnedFd, deadline: Instant, requires: bool) -> Talk {
        Talk { socket, deadline, requires, is_required: false, early: None }
    }

    /// Says how this side can be reached, or why it cannot be, and hears the other's, which has as many lanes.
    ///
    /// # Errors
    /// Either cannot be; or the connection is of no use any more.
    pub fn offer(&mut self, ours: Result<Offer, Trouble>, lanes: usize) -> Result<Offer, NoVerbs> {
        let what = ours.as_ref().map(|offer| *offer).map_err(|trouble| trouble.reason);
        self.send(&Said { requires: self.requires, what }.to_bytes())?;
        let theirs = Said::<Offer>::parse(&self.receive::<OFFER_BYTES>()?, lanes)?;
        self.is_required |= theirs.requires;
        ours.map_err(NoVerbs::Ours)?;
        theirs.what.map_err(NoVerbs::Theirs)
    }

    /// Says whether a step has worked on this side, and hears whether it has on the other.
    ///
    /// # Errors
    /// On either it has not; or the connection is of no use any more.
    pub fn step<T>(&mut self, step: Step, ours: Result<T, Trouble>) -> Result<T, NoVerbs> {
        let what = ours.as_ref().map(drop).map_err(|trouble| trouble.reason);
        self.send(&Said { requires: self.requires, what }.to_bytes(step))?;
        let theirs = match self.early.take() {
            Some(said) => said,
            None => Said::<()>::parse(&self.receive::<STEP_BYTES>()?, step)?,
        };
        self.is_required |= theirs.requires;
        match (ours, theirs.what) {
            (Ok(value), Ok(())) => Ok(value),
            // If it was the first to give up, this side has only followed it.
            (Err(Trouble { reason: Reason::Followed, .. }) | Ok(_), Err(reason)) => Err(NoVerbs::Theirs(reason)),
            (Err(trouble), _) => Err(NoVerbs::Ours(trouble)),
        }
    }

    /// Waits for one of some descriptors, which belong to the work before `step`. The other side may give up meanwhile.
    ///
    /// # Errors
    /// It has; or the connection is of no use any more.
    pub fn wait(&mut self, step: Step, fds: &[BorrowedFd<'_>], until: Instant) -> Result<Woken, Stop> {
        let until = until.min(self.deadline);
        loop {
            let Some(left) = left(until) else { return Ok(Woken::Late) };
            // What comes behind the step's message is not read here.
            let hears = if self.early.is_some() { PollFlags::RDHUP } else { PollFlags::IN | PollFlags::RDHUP };
            let mut all = vec![PollFd::new(&self.socket, hears)];
            all.extend(fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
            poll(&mut all, left)?;
            let socket = all[0].revents();
            let is_ready = all[1..].iter().any(|fd| !fd.revents().is_empty());
            drop(all);
            if socket.contains(PollFlags::IN) && self.early.is_none() {
                let said = Said::<()>::parse(&self.receive::<STEP_BYTES>()?, step).map_err(NoVerbs::from)?;
                self.early = Some(said);
                if said.what.is_err() {
                    return Err(Trouble::new(Reason::Followed, "").into());
                }
            } else if !socket.is_empty() {
                return Err(NoVerbs::Closed.into());
            }
            if is_ready {
                return Ok(Woken::Ready);
            }
        }
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<(), NoVerbs> {
        while !bytes.is_empty() {
            match rustix::net::send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::AGAIN) => self.wait_for_socket(PollFlags::OUT)?,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(NoVerbs::Closed),
                Err(errno) => return Err(NoVerbs::System(errno.into())),
            }
        }
        Ok(())
    }

    /// Not a byte more is read: what comes behind belongs to the link.
    fn receive<const N: usize>(&mut self) -> Result<[u8; N], NoVerbs> {
        let mut bytes = [0; N];
        let mut filled = 0;
        while filled < N {
            match rustix::net::recv(&self.socket, &mut bytes[filled..], RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Err(NoVerbs::Closed),
                Ok((received, _)) => filled += received,
                Err(Errno::AGAIN) => self.wait_for_socket(PollFlags::IN)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(NoVerbs::System(errno.into())),
            }
        }
        Ok(bytes)
    }

    fn wait_for_socket(&self, what: PollFlags) -> Result<(), NoVerbs> {
        let left = left(self.deadline).ok_or(NoVerbs::TimedOut)?;
        poll(&mut [PollFd::new(&self.socket, what)], left)
    }
}

impl From<NotSaid> for NoVerbs {
    fn from(NotSaid(what): NotSaid) -> NoVerbs {
        NoVerbs::Violation(what)
    }
}

fn left(until: Instant) -> Option<Duration> {
    until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
}

/// A short wait is as good as a whole one: callers look again.
fn poll(fds: &mut [PollFd<'_>], left: Duration) -> Result<(), NoVerbs> {
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match rustix::event::poll(fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(NoVerbs::System(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::offer::{Lanes, Numbers};
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    fn pair() -> (OwnedFd, OwnedFd) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (here.into(), listener.accept().unwrap().0.into())
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    fn talks() -> (Talk, Talk) {
        let (here, there) = pair();
        (Talk::new(here, soon(), false), Talk::new(there, soon(), true))
    }

    fn offer() -> Offer {
        let lanes = Lanes::Managed { place: None, lanes: 2 };
        Offer { mtu: 3, receives: 8, message_bytes: 4096, words: 1, reads_out: 1, reads_in: 1, lanes }
    }

    fn trouble(reason: Reason) -> Trouble {
        Trouble::new(reason, "as it is")
    }

    #[test]
    fn both_sides_know_after_each_step_whether_both_go_on() {
        let results = [Ok(()), Err(Reason::Connect)];
        for (ours, theirs) in results.into_iter().flat_map(|ours| results.map(|theirs| (ours, theirs))) {
            let (mut here, mut there) = talks();
            let far = thread::spawn(move || {
                assert_eq!(there.offer(Ok(offer()), 2).unwrap(), offer());
                there.step(Step::Ready, theirs.map_err(trouble)).map_err(|no| (no.is_agreed(), there.is_required))
            });
            assert_eq!(here.offer(Ok(offer()), 2).unwrap(), offer());
            let near = here.step(Step::Ready, ours.map_err(trouble));
            let near = near.map_err(|no| (no.is_agreed(), here.is_required));
            let both = ours.is_ok() && theirs.is_ok();
            assert_eq!(near, if both { Ok(()) } else { Err((true, true)) });
            assert_eq!(far.join().unwrap(), if both { Ok(()) } else { Err((true, false)) });
        }
    }

    #[test]
    fn who_is_busy_sees_that_the_other_has_given_up_and_the_stream_stays_whole() {
        let (mut here, mut there) = talks();
        assert!(there.send(&Said::<()> { requires: false, what: Err(Reason::Connect) }.to_bytes(Step::Ready)).is_ok());
        let started = Instant::now();
        let Err(Stop::Trouble(followed)) = here.wait(Step::Ready, &[], soon()) else { panic!("it waits on") };
        assert!(started.elapsed() < Duration::from_secs(2));
        let no = here.step::<()>(Step::Ready, Err(followed)).unwrap_err();
        assert!(matches!(no, NoVerbs::Theirs(Reason::Connect)), "{no}");
        let mut next = [0; STEP_BYTES + 1];
        assert!(there.send(b"x").is_ok());
        assert_eq!(rustix::net::recv(&here.socket, &mut next, RecvFlags::empty()).unwrap().1, 1);
        assert_eq!(next[0], b'x', "what comes behind is the link's");
        // One that has said yes early is waited with.
        let (mut here, mut there) = talks();
        assert!(there.send(&Said { requires: false, what: Ok(()) }.to_bytes(Step::Ready)).is_ok());
        let until = Instant::now() + Duration::from_millis(50);
        assert_eq!(here.wait(Step::Ready, &[], until).ok(), Some(Woken::Late));
        assert!(here.step(Step::Ready, Ok(())).is_ok());
    }

    #[test]
    fn nothing_half_of_it_and_garbage_end_the_connection_in_time() {
        let whole = Said { requires: false, what: Ok(offer()) }.to_bytes();
        let mut flipped = whole;
        flipped[6] ^= 2;
        for (sent, ends) in
            [(&[][..], false), (&whole[..100], false), (&whole[..100], true), (&flipped, false), (&[], true)]
        {
            let (here, there) = pair();
            rustix::net::send(&there, sent, SendFlags::empty()).unwrap();
            let _open = (!ends).then_some(there);
            let mut talk = Talk::new(here, Instant::now() + Duration::from_millis(200), false);
            let started = Instant::now();
            let no = talk.offer(Ok(offer()), 2).unwrap_err();
            assert!(started.elapsed() < Duration::from_secs(2) && !no.is_agreed());
            let expected = match (sent.len(), ends) {
                (_, true) => "closed by the other side",
                (OFFER_BYTES, _) => "broke the protocol: a message about queue pairs that is not due",
                _ => "says nothing",
            };
            assert!(no.to_string().contains(expected), "{no}, not {expected}");
        }
    }

    #[test]
    fn a_connection_that_ends_while_this_side_works_is_noticed() {
        let (mut here, there) = talks();
        drop(there);
        let waited = here.wait(Step::Verdict, &[], soon());
        assert!(matches!(waited, Err(Stop::Over(NoVerbs::Closed))), "{waited:?}");
        assert!(Numbers::new([]).is_none());
    }
}
