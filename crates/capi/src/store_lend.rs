//! Values of the store in place: borrowed to be read, allocated to be filled.

use super::arguments::{BytesArg, OutArg, ResultsArg, StructArg};
use super::error::{ReportArg, Status, answer};
use super::handle::{ClosingArg, Graveyard, Handle, HandleArg, Kind};
use super::store::{OpenStore, StorePutOptions, put_options, result_of};
use cenote_base::rt::Mutex;
use cenote_base::{Error, Result};
use cenote_space::{GlobalAddress, Space};
use cenote_store::{Allocation, Borrow, Outcome};

/// `cenote_store_borrow_handle`.
pub struct Borrowed {
    borrow: Borrow,
    space: Space,
    /// Where its pieces lay when they were told of: extents of a space in several pods move.
    told: Mutex<Vec<(GlobalAddress, u64, usize)>>,
}

impl Borrowed {
    fn of(borrow: Borrow, space: &Space) -> Self {
        Self {
            borrow,
            space: space.clone(),
            told: Mutex::default(),
        }
    }

    /// Whether its bytes were the value's to the end.
    fn end(self) -> Result<bool> {
        let stayed = self.stayed()?;
        Ok(self.borrow.end()? && stayed)
    }

    /// Whether its pieces lie where they lay.
    fn stayed(&self) -> Result<bool> {
        for (address, len, at) in &*self.told.lock() {
            if place(&self.space, *address, *len)? as usize != *at {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Null where this process does not map it.
fn place(space: &Space, address: GlobalAddress, len: u64) -> Result<*mut u8> {
    Ok(space.pointer(address, len as usize)?.unwrap_or(core::ptr::null_mut()))
}

/// `cenote_store_room_handle`.
pub struct Room {
    allocation: Allocation,
    space: Space,
}

impl Kind for Borrowed {
    const MAGIC: u64 = 0x776f_7262_0000_0000;
    const NAME: &'static str = "a borrow";

    fn graveyard() -> &'static Mutex<Graveyard<Self>> {
        static CLOSED: Mutex<Graveyard<Borrowed>> = Mutex::new(Graveyard::new());
        &CLOSED
    }
}

impl Kind for Room {
    const MAGIC: u64 = 0x6d6f_6f72_0000_0000;
    const NAME: &'static str = "room for a value";

    fn graveyard() -> &'static Mutex<Graveyard<Self>> {
        static CLOSED: Mutex<Graveyard<Room>> = Mutex::new(Graveyard::new());
        &CLOSED
    }
}

/// `cenote_store_piece`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Piece {
    /// Null where this process does not map it.
    at: *mut u8,
    len: u64,
    address: u64,
}

/// Writes pieces out, as many as there is room for; how many there are.
fn tell(
    space: &Space,
    pieces: &[(GlobalAddress, u64)],
    into: ResultsArg<'_, Piece>,
    room: usize,
    n: OutArg<'_, usize>,
) -> Result<()> {
    let into = into.places(room)?;
    n.place("the count")?.write(pieces.len());
    for ((address, len), piece) in pieces.iter().zip(into) {
        let at = place(space, *address, *len)?;
        *piece = Piece {
            at,
            len: *len,
            address: address.raw(),
        };
    }
    match pieces.len() > room {
        true => Err(Error::OutOfBounds(format!(
            "{} pieces, where there is room for {room}",
            pieces.len()
        ))),
        false => Ok(()),
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_borrow(
    store: HandleArg<'_, OpenStore>,
    key: BytesArg<'_>,
    key_len: usize,
    borrow: OutArg<'_, *mut Handle<Borrowed>>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let mut place = borrow.place("the borrow")?;
        place.write(core::ptr::null_mut());
        let store = &store.get()?.store;
        if let Some(borrow) = store.borrow(key.bytes(key_len)?)? {
            place.write(Handle::make(Borrowed::of(borrow, store.space())));
        }
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_pieces(
    borrow: HandleArg<'_, Borrowed>,
    pieces: ResultsArg<'_, Piece>,
    room: usize,
    n: OutArg<'_, usize>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let borrowed = borrow.get()?;
        let lies = |(address, len): &(GlobalAddress, u64)| {
            Ok((*address, *len, place(&borrowed.space, *address, *len)? as usize))
        };
        let told: Result<Vec<_>> = borrowed.borrow.pieces().iter().map(lies).collect();
        borrowed.told.lock().extend(told?);
        tell(&borrowed.space, borrowed.borrow.pieces(), pieces, room, n)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_return(
    borrow: ClosingArg<Borrowed>,
    held: OutArg<'_, i32>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let mut place = held.place("whether it held")?;
        let held = borrow.close()?.map_or(Ok(false), Borrowed::end)?;
        place.write(i32::from(held));
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_alloc(
    store: HandleArg<'_, OpenStore>,
    key: BytesArg<'_>,
    key_len: usize,
    value_len: u64,
    options: StructArg<'_, StorePutOptions>,
    room: OutArg<'_, *mut Handle<Room>>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let mut place = room.place("the room")?;
        place.write(core::ptr::null_mut());
        let store = &store.get()?.store;
        let allocation = store.alloc(key.bytes(key_len)?, value_len, put_options(options))?;
        place.write(Handle::make(Room {
            allocation,
            space: store.space().clone(),
        }));
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_room(
    room: HandleArg<'_, Room>,
    pieces: ResultsArg<'_, Piece>,
    most: usize,
    n: OutArg<'_, usize>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let room = room.get()?;
        tell(&room.space, &room.allocation.pieces()?, pieces, most, n)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_publish(
    room: ClosingArg<Room>,
    result: OutArg<'_, i64>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let mut place = result.place("the result")?;
        if let Some(room) = room.close()? {
            place.write(result_of(&Outcome::Put(room.allocation.publish()?)));
        }
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_discard(room: ClosingArg<Room>, error: ReportArg<'_>) -> Status {
    answer(error, || room.close().map(drop))
}
