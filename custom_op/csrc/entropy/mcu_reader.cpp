#include "entropy/mcu_reader.h"

#include <algorithm>
#include <utility>

namespace custom_op {
namespace {

constexpr size_t kMostBlocksInMcu = 10;  // by the standard
constexpr size_t kEntryBytes = 4;        // of a side index, rather too few
constexpr size_t kFewestEntries = 12;    // the index's header alone is as large as 9

// An FF at the end of a file starts no marker: libjpeg skips it and finds the file truncated.
Bytes without_fill(Bytes jpeg, size_t scan_data) {
  while (jpeg.size > scan_data && jpeg.data[jpeg.size - 1] == 0xFF) --jpeg.size;
  return jpeg;
}

void clear(Block* blocks, size_t count, Keep keep) {
  if (keep == Keep::kDc) return;  // each is overwritten
  for (size_t i = 0; i < count; ++i) blocks[i].coefficients.fill(0);
}

}  // namespace

bool McuReader::start(Bytes jpeg, const Header& header, const ScanTables& tables,
                      Bytes side_index) {
  jpeg_ = without_fill(jpeg, header.scan_data);
  header_ = &header;
  if (!build_tables(header, tables) || !lay_out(header, tables)) return false;
  if (!index_restarts(jpeg_, header, segments_)) return false;
  interval_ = header.restart_interval;
  side_index_.clear();
  changed_ = recording_ = false;
  if (interval_ == 0) {
    interval_ = header.mcu_rows * header.mcus_per_row;
    if (side_index.size != 0) side_index_.parse(side_index, scan());
  }
  rewind();
  return true;
}

void McuReader::rewind() {
  enter(0, place_);
  enter(0, other_);
}

void McuReader::record_side_index(size_t most_bytes) {
  if (header_->restart_interval != 0 || !side_index_.empty()) return;
  const size_t data = jpeg_.size - header_->scan_data;
  const size_t most_entries = most_bytes / kEntryBytes;
  if (most_entries < kFewestEntries || jpeg_.size > UINT32_MAX) return;
  recording_ = true;
  most_bytes_ = most_bytes;
  recorded_ = 0;
  record_.begin(scan(), std::max<size_t>(data / most_entries, 1));
}

std::vector<uint8_t> McuReader::finish_side_index() {
  if (!recording_) return {};
  if (place_.next != interval_ && (!seek(interval_ - 1) || take(1) == 0)) return {};
  const uint64_t end = place_.bits.position(scan_data(), jpeg_.data);
  recording_ = false;
  return record_.serialize(scan(), static_cast<size_t>((end + 7) / 8), most_bytes_);
}

// Called where the reader has just passed a part of the scan.
void McuReader::record(const Place& place) {
  if (place.next <= recorded_) return;  // another crop's way to the same place
  recorded_ = place.next;
  if (recorded_ % most_mcus() != 0 || recorded_ == interval_) return;
  record_.add(recorded_, place.bits.position(scan_data(), jpeg_.data), place.predictors, jpeg_);
}

bool McuReader::build_tables(const Header& header, const ScanTables& tables) {
  for (int i = 0; i < header.component_count; ++i) {
    const auto [quantization, dc, ac] = tables.components[i];
    if (!huffman_.build(dc, tables.dc[dc]) || !huffman_.build(4 + ac, tables.ac[ac])) return false;
  }
  return true;
}

bool McuReader::lay_out(const Header& header, const ScanTables& tables) {
  layout_.clear();
  for (int i = 0; i < header.component_count; ++i) {
    const auto [horizontal, vertical] = header.components[i];
    const int count = header.component_count == 1 ? 1 : horizontal * vertical;
    layout_.insert(layout_.end(), static_cast<size_t>(count), static_cast<uint8_t>(i));
  }
  if (layout_.size() > kMostBlocksInMcu) return false;
  const auto selection = [&](size_t block) {
    return tables.components[layout_[block % layout_.size()]];
  };
  first_dc_ = huffman_.table(selection(0).dc);
  for (size_t i = 0; i < kBlocks; ++i) {
    blocks_[i].ac = huffman_.table(4 + selection(i).ac);
    blocks_[i].to_next_dc = huffman_.table(selection(i + 1).dc) - blocks_[i].ac;
  }
  return true;
}

void McuReader::enter(int64_t segment, Place& place) const {
  const Range range = segments_[static_cast<size_t>(segment)];
  place.bits = BitReader(jpeg_.data + range.begin, jpeg_.data + jpeg_.size);
  place.predictors.fill(0);
  place.next = segment * interval_;
  place.segment_end = place.next + interval_;
}

bool McuReader::enter_entry(const SideIndex::Entry& entry, Place& place) {
  if (!SideIndex::fits(entry, jpeg_)) {
    changed_ = true;
    return false;
  }
  const uint8_t* const byte = jpeg_.data + (entry.bit >> 3);
  place.bits = BitReader(byte, static_cast<int>(entry.bit & 7), jpeg_.data + jpeg_.size);
  std::copy(entry.predictors.begin(), entry.predictors.end(), place.predictors.begin());
  place.next = entry.mcu;
  return true;
}

bool McuReader::approach(int64_t mcu, Place& place) {
  if (mcu == place.next) return true;  // leave_segment() checks how the segment ends
  if (!side_index_.empty()) {
    const SideIndex::Entry& entry = side_index_.before(mcu);
    return (mcu > place.next && entry.mcu <= place.next) || enter_entry(entry, place);
  }
  if (mcu < place.next || mcu >= place.segment_end) enter(mcu / interval_, place);
  return true;
}

bool McuReader::seek(int64_t mcu) { return approach(mcu, place_) && skip_to(mcu, place_); }

bool McuReader::seek_two(int64_t mcu, int64_t other) {
  std::swap(place_, other_);  // the later place may be just before the next two
  if (!approach(mcu, place_) || !approach(other, other_)) return false;
  const auto most = static_cast<int64_t>(half() / layout_.size());
  for (;;) {
    const int64_t both = std::min({mcu - place_.next, other - other_.next, most});
    if (both == 0) return skip_to(mcu, place_) && skip_to(other, other_);
    if (!decode_two(both, Keep::kDc)) return false;
  }
}

bool McuReader::skip_to(int64_t mcu, Place& place) {
  while (place.next < mcu) {
    if (!decode(std::min(mcu - place.next, most_mcus(place)), Keep::kDc, place)) return false;
  }
  return true;
}

// At the end of a segment, moves to the next one. Returns false if data is left in it.
bool McuReader::leave_segment(Place& place) const {
  if (place.next != place.segment_end) return true;
  if (!place.bits.exhausted()) return false;
  enter(place.next / interval_, place);
  return true;
}

int64_t McuReader::take(int64_t wanted) {
  if (!leave_segment(place_)) return 0;
  const int64_t count = std::min({wanted, place_.segment_end - place_.next, most_mcus(place_)});
  return decode(count, Keep::kAll, place_) ? count : 0;
}

int64_t McuReader::take_two(int64_t wanted) {
  if (!leave_segment(place_) || !leave_segment(other_)) return 0;
  const int64_t count =
      std::min({wanted, place_.segment_end - place_.next, other_.segment_end - other_.next,
                static_cast<int64_t>(half() / layout_.size())});
  if (!decode_two(count, Keep::kAll)) return 0;
  // The scan goes on behind the first place, but not from there.
  return place_.next == place_.segment_end && !place_.bits.exhausted() ? 0 : count;
}

bool McuReader::decode(int64_t mcus, Keep keep, Place& place) {
  const size_t count = static_cast<size_t>(mcus) * layout_.size();
  Block* const begin = blocks_.data();
  clear(begin, count, keep);
  const bool good = decode_blocks(huffman_, first_dc_, keep, {place.bits, begin, begin + count}) &&
                    move(mcus, begin, place);
  if (!good) recording_ = false;
  if (recording_) record(place);
  return good;
}

bool McuReader::decode_two(int64_t mcus, Keep keep) {
  const size_t count = static_cast<size_t>(mcus) * layout_.size();
  Block *const begin = blocks_.data(), *const other = begin + half();
  clear(begin, count, keep);
  clear(other, count, keep);
  return decode_blocks(huffman_, first_dc_, keep, {place_.bits, begin, begin + count},
                       {other_.bits, other, other + count}) &&
         move(mcus, begin, place_) && move(mcus, other, other_);
}

// Moves the place behind blocks that were decoded from it, and replaces their DC differences by
// sums. Returns false if bits are missing or a sum does not fit into 16 bits: libjpeg wraps it and
// refuses what does not fit into 32.
bool McuReader::move(int64_t mcus, Block* blocks, Place& place) const {
  place.next += mcus;
  int32_t far = 0;
  for (int64_t mcu = 0; mcu < mcus; ++mcu) {
    for (const uint8_t component : layout_) {
      int32_t& predictor = place.predictors[component];
      predictor += blocks->coefficients[0];
      far |= predictor + 0x8000;
      (blocks++)->coefficients[0] = static_cast<int16_t>(predictor);
    }
  }
  return !place.bits.overrun(scan_data()) && far >> 16 == 0;
}

}  // namespace custom_op
