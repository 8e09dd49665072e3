// Places inside a scan at which decoding can start, kept beside a file that stays as it is.
#pragma once

#include <array>
#include <vector>

#include "jpeg/header.h"

namespace custom_op {

// Note [Side index]
// Decoding can start in the middle of a scan if the position of a bit and the DC predictors there
// are known. Restart markers make them known by changing the file. A side index stores them apart
// from the file, for about as many places as its size allows:
//
//   "JIX", version 1
//   u32    s, bits of the scan between entries, little-endian as all numbers
//   u32    number of entries
//   u32    end of the scan's data in the file
//   u64    fingerprint of the file, see below
//   u32    checksum of this index, without this number
//   u8[6]  parameters of the Rice codes below, see Note [Rice codes]
//   then, for every entry, without gaps between bits
//     Rice   groups of MCUs since the entry before, less 1
//     Rice   bits since it was due, counted in the file, stuffed bytes included
//     Rice   change of each component's predictor, zigzag-coded
//     8 bit  hash of the 8 bytes at the position
//
// An entry is due at the first multiple of s after the entry before, and is where the next group
// starts. Entries are spaced by bits, because decoding time and file size grow with bits: an MCU of
// grass has ten times as many as an MCU of sky. A group is the number of MCUs that are decoded at
// once.
//
// Decoding with an index must detect a changed file without reading all of it.
// The fingerprint covers size, tables, frame and scan header, both ends of the scan's data and a
// few places between them: photographs with the same header and size differ in all of these,
// pictures with plain borders in some. The 8 bytes are compared when decoding starts at them. A
// damaged index could give wrong predictors, and so wrong pixels: hence its checksum.
class SideIndex {
 public:
  struct Entry {
    int64_t mcu;
    uint64_t bit;  // of the next bit, from the start of the file
    std::array<int16_t, 4> predictors;
    uint8_t check;
  };

  // The file that an index belongs to; a group has `group` MCUs.
  struct Scan {
    Bytes jpeg;
    const Header& header;
    int64_t group;
  };

  // Starts an empty index, with an entry due every `spacing` bytes, at least 1.
  void begin(const Scan& scan, uint64_t spacing);
  // Adds an entry if one is due. `mcu` must be the first of a group and behind all added before.
  void add(int64_t mcu, uint64_t bit, const std::array<int32_t, 4>& predictors, Bytes jpeg);
  // The index, given where the scan's data ends. Empty if `most_bytes` leaves no room for an entry;
  // else it has as many of the added entries as fit.
  std::vector<uint8_t> serialize(const Scan& scan, size_t end, size_t most_bytes);

  // Reads an index. Returns false if it is damaged or belongs to another file.
  bool parse(Bytes index, const Scan& scan);

  bool empty() const { return entries_.empty(); }
  // MCUs between entries, on average; only if not empty.
  int64_t interval(int64_t mcus) const { return mcus / static_cast<int64_t>(entries_.size()); }
  // The last entry at `mcu` or before it.
  const Entry& before(int64_t mcu) const;
  // Whether the file is the same where the entry is.
  static bool fits(const Entry& entry, Bytes jpeg);
  void clear() { entries_.clear(); }

 private:
  std::vector<uint8_t> write(const Scan& scan, size_t end) const;
  void thin_out();

  uint64_t spacing_ = 0;        // in bits
  uint64_t due_ = 0;            // the next entry's bit is this or a later one
  std::vector<Entry> entries_;  // the first one is the start of the scan
};

}  // namespace custom_op
