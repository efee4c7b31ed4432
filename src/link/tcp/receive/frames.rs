//! What a lane does with frames as they become complete.

use super::super::super::{Failure, Reason, Violation};
use super::super::frame::{HEADER_BYTES, Header, Kind, PIECE_BYTES, Status, TRAILER_BYTES};
use super::super::frame::{decode_pieces, decode_trailer};
use super::super::job::Job;
use super::super::lane::Lane;
use super::{EDGE_BYTES, Sink, Stage};
use crate::region::Rights;

impl Lane {
    /// Acts on every part of a frame that is complete.
    pub(super) fn advance_frames(&mut self) -> Result<(), Reason> {
        loop {
            let receiving = &self.receiving;
            match receiving.stage {
                Stage::Payload if receiving.left == 0 && receiving.edge_got >= TRAILER_BYTES => self.close_frame()?,
                Stage::Header if receiving.edge_got == EDGE_BYTES => self.open_header()?,
                Stage::Pieces if receiving.list_got == receiving.list_bytes() => self.open_frame()?,
                Stage::NoBuffer if !receiving.spare.is_empty() => self.expect_message(),
                _ => return Ok(()),
            }
        }
    }

    fn open_header(&mut self) -> Result<(), Reason> {
        let receiving = &mut self.receiving;
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&receiving.edge[TRAILER_BYTES..]);
        receiving.frame = Header::decode(&header)?;
        if !receiving.frame.kind.is_answer() {
            if receiving.frame.id != receiving.next_id {
                return Err(Violation("a frame is missing, or came twice").into());
            }
            receiving.next_id = receiving.next_id.wrapping_add(1);
        }
        (receiving.status, receiving.list_got, receiving.stage) = (Status::Good, 0, Stage::Pieces);
        Ok(())
    }

    /// Header and pieces are there.
    fn open_frame(&mut self) -> Result<(), Reason> {
        let receiving = &mut self.receiving;
        let frame = receiving.frame;
        if frame.pieces > 0 {
            let first = &receiving.edge[EDGE_BYTES - PIECE_BYTES..];
            let rest = receiving.list[..receiving.list_got].chunks_exact(PIECE_BYTES);
            decode_pieces(std::iter::once(first).chain(rest), frame.length, &mut receiving.pieces)?;
        }
        if frame.kind.is_answered() {
            let answer = self.sending.spare.pop();
            receiving.reserved = Some(answer.ok_or(Violation("more questions than were agreed on"))?);
        }
        match frame.kind {
            Kind::Write | Kind::WriteAcknowledged => self.open_write()?,
            Kind::Read => self.open_read()?,
            Kind::Send => self.expect_message(),
            Kind::Ack => self.acknowledged()?,
            Kind::Reply => self.open_reply()?,
        }
        Ok(())
    }

    fn open_write(&mut self) -> Result<(), Violation> {
        let receiving = &mut self.receiving;
        receiving.status = Status::of(self.grants.begin(&receiving.pieces, Rights::WRITE)?);
        let usable = receiving.status == Status::Good;
        receiving.expect(if usable { Sink::Grants } else { Sink::Scratch });
        Ok(())
    }

    fn open_read(&mut self) -> Result<(), Violation> {
        let receiving = &mut self.receiving;
        let status = Status::of(self.grants.begin(&receiving.pieces, Rights::READ)?);
        if let Some(mut answer) = receiving.reserved.take() {
            answer.answer(Kind::Reply, receiving.frame.id);
            answer.granted.extend_from_slice(&receiving.pieces);
            (answer.bytes, answer.status) = (receiving.frame.length, status);
            self.sending.answers.push_back(answer);
        }
        receiving.expect_header();
        Ok(())
    }

    fn expect_message(&mut self) {
        let receiving = &mut self.receiving;
        match receiving.spare.pop() {
            Some(mut buffer) => {
                buffer.len = receiving.frame.length as usize;
                receiving.expect(Sink::Message(buffer));
            }
            None => receiving.stage = Stage::NoBuffer,
        }
    }

    /// The question that an answer is for: always the first without one.
    fn take_answered(&mut self, kind: Kind) -> Result<&mut Job, Violation> {
        let id = self.receiving.frame.id;
        let first = self.sending.awaiting.front_mut().filter(|job| job.kind == kind && job.id == id);
        first.map(|job| &mut **job).ok_or(Violation("an answer to no question"))
    }

    fn acknowledged(&mut self) -> Result<(), Violation> {
        let result = self.take_answered(Kind::WriteAcknowledged)?.result();
        self.receiving.expect_header();
        self.complete_first(result.and(there(self.receiving.frame.status)));
        Ok(())
    }

    fn open_reply(&mut self) -> Result<(), Violation> {
        let frame = self.receiving.frame;
        let job = self.take_answered(Kind::Read)?;
        if frame.status != Status::Good {
            self.receiving.expect_header();
            self.complete_first(there(frame.status));
        } else if job.bytes == frame.length {
            self.receiving.expect(Sink::Local);
        } else {
            return Err(Violation("an answer that is not as long as the question says"));
        }
        Ok(())
    }

    fn complete_first(&mut self, result: Result<(), Failure>) {
        self.sending.unanswered = self.sending.unanswered.saturating_sub(1);
        if let Some(job) = self.sending.awaiting.pop_front() {
            self.done(job, result);
        }
    }

    /// Payload and trailer are there.
    fn close_frame(&mut self) -> Result<(), Violation> {
        let receiving = &mut self.receiving;
        let source = decode_trailer(&receiving.edge, receiving.frame.id)?;
        let here = receiving.status;
        receiving.stage = Stage::Header;
        let sink = std::mem::replace(&mut receiving.sink, Sink::Scratch);
        match receiving.frame.kind {
            Kind::Write | Kind::WriteAcknowledged => {
                let bad = source != Status::Good || here != Status::Good;
                let lost = self.grants.finish(&receiving.pieces, bad);
                if let Some(mut answer) = receiving.reserved.take() {
                    answer.answer(Kind::Ack, receiving.frame.id);
                    answer.status = if lost && here == Status::Good { Status::Lost } else { here };
                    self.sending.answers.push_back(answer);
                }
            }
            Kind::Reply => {
                let lost = here != Status::Good || self.take_answered(Kind::Read)?.is_lost_here();
                self.complete_first(there(source).and(if lost { Err(Failure::Lost) } else { Ok(()) }));
            }
            _ => match sink {
                Sink::Message(buffer) if source == Status::Good => self.message(buffer),
                _ => return Err(Violation("a message that is not whole")),
            },
        }
        Ok(())
    }
}

/// What the other side's status comes to here.
fn there(status: Status) -> Result<(), Failure> {
    match status {
        Status::Good => Ok(()),
        Status::Lost => Err(Failure::LostThere),
        Status::Revoked => Err(Failure::Revoked),
    }
}
