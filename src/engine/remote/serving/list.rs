//! What a command's list says, before anything is done by it. Its sender is not believed: that every piece lies in its
//! region is checked where the bytes are copied, and what is needed before that is checked here.

use super::super::opened::Opened;
use crate::link::LocalPiece;
use crate::pack::{ListTask, Way};
use crate::plan::{Decoder, Fault, LIST_PIECES, Limits, ListPiece, Refusal};
use crate::region::{Region, Rights};
use ring_abi::{Field, Stage, Status};
use std::sync::Arc;

/// What a list names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// One piece of memory, that has been checked.
    Piece(ListPiece),
    /// So many, all of them memory.
    Pieces(u32),
    /// Several, of which some may be zeros.
    Zeros,
}

/// Looks through the list that the task has, which is to be of so many bytes, and gives the task the regions that it names,
/// in the order of their numbers.
///
/// # Errors
/// What is wrong with it.
pub fn look_through(task: &mut ListTask, way: Way, bytes: u32, opened: &Opened) -> Result<Listed, Fault> {
    let mut regions = std::mem::take(&mut task.regions);
    let listed = sections(task.list(), way, bytes, opened, &mut regions);
    task.regions = regions;
    listed
}

fn sections(
    list: &[u8],
    way: Way,
    bytes: u32,
    opened: &Opened,
    regions: &mut Vec<(u32, Arc<Region>)>,
) -> Result<Listed, Fault> {
    let (wanted, zeros) = if way == Way::Pack { (Rights::READ, true) } else { (Rights::WRITE, false) };
    let mut decoder = Decoder::new(list, Limits { bytes, pieces: LIST_PIECES, zeros }).map_err(fault)?;
    let (mut listed, mut has_zeros) = (None, false);
    loop {
        let mut why = None;
        let find = |number| {
            let region = opened.find_for(number, wanted).map_err(|status| why = Some(status)).ok()?;
            if let Err(at) = regions.binary_search_by_key(&number, |(known, _)| *known) {
                regions.insert(at, (number, region.clone()));
            }
            Some(region.bytes())
        };
        let section = decoder.next_section(find);
        let section = section.map_err(|refusal| fault(Refusal { status: why.unwrap_or(refusal.status), ..refusal }))?;
        let Some(section) = section else { break };
        has_zeros |= section.may_have_zeros();
        let mut pieces = section.pieces();
        listed = match (listed, pieces.next().transpose().map_err(fault)?, pieces.next()) {
            (None, Some(piece), None) if !piece.zero => Some(Listed::Piece(piece)),
            _ => Some(Listed::Pieces(0)),
        };
    }
    let listed = listed.map(|listed| match listed {
        Listed::Pieces(_) if has_zeros => Listed::Zeros,
        Listed::Pieces(_) => Listed::Pieces(decoder.pieces()),
        piece => piece,
    });
    match listed {
        Some(Listed::Piece(piece)) if piece.len != bytes => Err(not_its_length(piece.len)),
        Some(listed) => Ok(listed),
        None => Err(not_its_length(0)),
    }
}

/// The pieces that a list which was [looked through](look_through) names, for a device that is to send them from where they
/// lie.
///
/// # Errors
/// A piece that does not lie in its region, or is not memory.
pub fn local_pieces(task: &ListTask, bytes: u32, into: &mut Vec<LocalPiece>) -> Result<(), Fault> {
    into.clear();
    let limits = Limits { bytes, pieces: LIST_PIECES, zeros: true };
    let mut decoder = Decoder::new(task.list(), limits).map_err(fault)?;
    let find = |number: u32| task.regions.iter().find(|(known, _)| *known == number).map(|(_, region)| region);
    while let Some(section) = decoder.next_section(|number| find(number).map(|region| region.bytes())).map_err(fault)? {
        for piece in section.pieces() {
            let piece = piece.map_err(fault)?;
            let local = find(piece.region).and_then(|region| LocalPiece::of_region(region, piece.offset, piece.len));
            into.push(local.filter(|_| !piece.zero).ok_or(not_its_length(piece.len))?);
        }
    }
    Ok(())
}

/// The list has other bytes than its command says.
pub fn not_its_length(bytes: u32) -> Fault {
    Fault::new(Status::BAD_MESSAGE, Stage::COMMAND, Field::NONE, bytes.into())
}

/// A list that is not followed, as the requester is told.
pub fn fault(refusal: Refusal) -> Fault {
    let Refusal { status, piece, detail } = refusal;
    Fault { fragment: piece, ..Fault::new(status, Stage::PACK, Field::NONE, detail) }
}
