#include "entropy/mcu_reader.h"

#include <algorithm>

namespace custom_op {
namespace {

constexpr size_t kMostBlocksInMcu = 10;  // by the standard

}  // namespace

bool McuReader::start(Bytes jpeg, const Header& header, const ScanTables& tables,
                      Bytes side_index) {
  jpeg_ = jpeg;
  if (!build_tables(header, tables) || !lay_out(header, tables)) return false;
  if (!index_restarts(jpeg, header, segments_)) return false;
  interval_ = header.restart_interval;
  side_index_.clear();
  if (interval_ == 0) {
    interval_ = header.mcu_rows * header.mcus_per_row;
    if (side_index.size != 0) side_index_.parse(side_index, jpeg, header);
  }
  enter(0);
  return true;
}

std::vector<uint8_t> McuReader::build_side_index(const Header& header, int64_t interval) {
  if (header.restart_interval != 0) return {};
  const uint8_t* const begin = jpeg_.data + header.scan_data;
  SideIndex index;
  index.begin(interval, bits_.position(begin, jpeg_.data));
  for (int64_t mcu = interval; mcu < interval_; mcu += interval) {
    if (!seek(mcu)) return {};
    index.add(bits_.position(begin, jpeg_.data), predictors_, jpeg_);
  }
  if (!seek(interval_ - 1) || take(1) == 0) return {};
  return index.serialize(jpeg_, header);
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

void McuReader::enter(int64_t segment) {
  const Range range = segments_[static_cast<size_t>(segment)];
  bits_ = BitReader(jpeg_.data + range.begin, jpeg_.data + jpeg_.size);
  predictors_.fill(0);
  next_ = segment * interval_;
  segment_end_ = next_ + interval_;
}

bool McuReader::enter_entry(int64_t number) {
  SideIndex::Entry entry;
  if (!side_index_.find(number, jpeg_, entry)) return false;
  const uint8_t* const byte = jpeg_.data + (entry.bit >> 3);
  bits_ = BitReader(byte, static_cast<int>(entry.bit & 7), jpeg_.data + jpeg_.size);
  std::copy(entry.predictors.begin(), entry.predictors.end(), predictors_.begin());
  next_ = number * side_index_.interval();
  return true;
}

// Replaces the DC differences by their sums. Returns false if one does not fit into 16 bits:
// libjpeg wraps it and refuses what does not fit into 32.
bool McuReader::sum_up(const Block* end) {
  int32_t far = 0;
  for (Block* block = blocks_.data(); block != end;) {
    for (const uint8_t component : layout_) {
      int32_t& predictor = predictors_[component];
      predictor += block->coefficients[0];
      far |= predictor + 0x8000;
      (block++)->coefficients[0] = static_cast<int16_t>(predictor);
    }
  }
  return far >> 16 == 0;
}

bool McuReader::skip(int64_t mcus) {
  Block* const end = blocks_.data() + static_cast<size_t>(mcus) * layout_.size();
  if (!skip_blocks(bits_, huffman_, first_dc_, blocks_.data(), end)) return false;
  next_ += mcus;
  return !bits_.overrun() && sum_up(end);
}

bool McuReader::seek(int64_t mcu) {
  if (mcu == next_) return true;  // take() checks that a segment ends where the next one starts
  if (const int64_t step = side_index_.interval(); step != 0) {
    const int64_t number = mcu / step;
    if ((mcu < next_ || number * step > next_) && !enter_entry(number)) return false;
  } else if (mcu < next_ || mcu >= segment_end_) {
    enter(mcu / interval_);
  }
  const auto most = static_cast<int64_t>(kBlocks / layout_.size());
  while (next_ < mcu) {
    if (!skip(std::min(mcu - next_, most))) return false;
  }
  return true;
}

int64_t McuReader::take(int64_t wanted) {
  if (next_ == segment_end_) {
    if (!bits_.exhausted()) return 0;
    enter(next_ / interval_);
  }
  const auto most = static_cast<int64_t>(kBlocks / layout_.size());
  const int64_t count = std::min({wanted, segment_end_ - next_, most});
  Block* const end = blocks_.data() + static_cast<size_t>(count) * layout_.size();
  for (Block* block = blocks_.data(); block != end; ++block) block->coefficients.fill(0);
  if (!decode_blocks(bits_, huffman_, first_dc_, blocks_.data(), end)) return 0;
  next_ += count;
  return !bits_.overrun() && sum_up(end) ? count : 0;
}

}  // namespace custom_op
