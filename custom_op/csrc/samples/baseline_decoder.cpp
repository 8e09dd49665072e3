#ifdef __AVX2__

#include "samples/baseline_decoder.h"

#include <algorithm>

#include "samples/idct.h"
#include "samples/padding.h"
#include "samples/upsample.h"
#include "samples/ycbcr.h"

namespace custom_op {
namespace {

// Note [MCU rows in memory]
// A row of pixels needs its chroma row and the nearest chroma row above or below. At the end of an
// MCU row, that one is in the next MCU row. So the planes hold the MCU rows that are decoded at
// once and as many before, and the last pixel row of each waits for the next. Rows and columns
// beyond the image repeat its edge, as in libjpeg; the cover has a margin at all other edges, see
// Note [One-pixel margin].
//
// Two MCU rows are decoded at once if decoding can start often enough. Each then starts at a
// different place, so more MCUs before the cover are decoded for nothing.
int64_t rows_at_once(const McuReader& reader, const Header& header) {
  return 2 * reader.start_interval() <= header.mcus_per_row ? 2 : 1;
}

// Samples before and after each row of a plane: repeated edges, and what vector code reads and
// writes in vain.
constexpr int64_t kMargin = kCacheLine;
static_assert(kMargin >= kSamplePadding + 8);

constexpr int64_t kBlock = 8;

bool is_half_or_full(const Component& component) {
  return component.horizontal <= 2 && component.vertical <= 2;
}

bool is_one_by_one(const Component& component) {
  return component.horizontal == 1 && component.vertical == 1;
}

}  // namespace

bool BaselineDecoder::supports(Bytes jpeg, const Header& header) {
  if (header.component_count == 1) return true;
  const auto& [luma, blue, red, black] = header.components;
  if (header.component_count != 3 || !is_half_or_full(luma) || !is_one_by_one(blue) ||
      !is_one_by_one(red)) {
    return false;
  }
  const uint8_t* ids = jpeg.data + header.frame + 10;
  const bool distinct = ids[0] != ids[3] && ids[0] != ids[6] && ids[3] != ids[6];
  // libjpeg upsamples one or two columns of chroma without a filter.
  const bool wide = luma.horizontal == 1 || header.width > 4;
  return distinct && wide && is_ycbcr(jpeg, header);
}

uint8_t* BaselineDecoder::Plane::row(int64_t y) {
  return samples.data() + (y & (height - 1)) * stride + kMargin;
}

uint8_t* BaselineDecoder::Plane::row_beside(int64_t y) {
  const int64_t beside = y % 2 == 1 ? y / 2 + 1 : y / 2 - 1;
  return row(std::clamp<int64_t>(beside, 0, rows - 1));
}

bool BaselineDecoder::decode(McuReader& reader, const Header& header, const ScanTables& tables,
                             const Box& box, RowSink& sink) {
  const int64_t at_once = rows_at_once(reader, header);
  prepare(header, tables, box, 2 * at_once);
  sink.begin();
  const bool waits = header.component_count == 3 && header.components[0].vertical == 2;
  int64_t y = box.top;
  const int64_t end_row = cover_.first_row + cover_.rows;
  for (int64_t row = cover_.first_row; row < end_row; row += at_once) {
    const int64_t next = std::min(row + at_once, end_row);
    if (!decode_mcu_rows(reader, row, next - row)) return false;
    const bool last = next == header.mcu_rows;
    const int64_t ready = next * header.mcu_height - (waits && !last ? 1 : 0);
    for (const int64_t end = std::min(ready, box.top + box.height); y < end; ++y) {
      write_row(y, box, sink.next());
      sink.written();
    }
  }
  return true;
}

void BaselineDecoder::prepare(const Header& header, const ScanTables& tables, const Box& box,
                              int64_t mcu_rows) {
  header_ = &header;
  cover_ = cover_of(header, box);
  planes_.resize(static_cast<size_t>(header.component_count));
  blocks_per_mcu_ = 0;
  for (size_t i = 0; i < planes_.size(); ++i) {
    Plane& plane = planes_[i];
    const bool single = header.component_count == 1;
    plane.horizontal = single ? 1 : header.components[i].horizontal;
    plane.vertical = single ? 1 : header.components[i].vertical;
    plane.first_block = blocks_per_mcu_;
    blocks_per_mcu_ += plane.horizontal * plane.vertical;
    const auto index = static_cast<size_t>(tables.components[i].quantization);
    plane.quantization = tables.quantization[index].data();
    const int64_t wide = header.mcu_width / kBlock, high = header.mcu_height / kBlock;
    const int64_t block_columns = cover_.cols * plane.horizontal;
    plane.columns = divide_up(header.width * plane.horizontal, wide) -
                    cover_.first_col * plane.horizontal * kBlock;
    plane.rows = divide_up(header.height * plane.vertical, high);
    plane.stride = aligned_stride(block_columns * kBlock + 2 * kMargin);
    plane.height = mcu_rows * plane.vertical * kBlock;
    plane.samples.resize(static_cast<size_t>(plane.stride * plane.height));
  }
  const auto width = static_cast<size_t>(cover_.cols * header.mcu_width + 2 * kMargin);
  blue_.resize(width);
  red_.resize(width);
  gray_.assign(width, 128);
  blue_sums_.resize(width);
  red_sums_.resize(width);
}

bool BaselineDecoder::decode_mcu_rows(McuReader& reader, int64_t mcu_row, int64_t rows) {
  const bool good =
      rows == 2 ? decode_two_mcu_rows(reader, mcu_row) : decode_mcu_row(reader, mcu_row);
  if (!good) return false;
  for (int64_t row = mcu_row; row < mcu_row + rows; ++row) {
    for (Plane& plane : planes_) repeat_edges(row, plane);
  }
  return true;
}

bool BaselineDecoder::decode_mcu_row(McuReader& reader, int64_t mcu_row) {
  if (!reader.seek(mcu_row * header_->mcus_per_row + cover_.first_col)) return false;
  for (int64_t column = 0; column < cover_.cols;) {
    const int64_t mcus = reader.take(cover_.cols - column);
    if (mcus == 0 || !transform_all(reader.blocks(), mcus, column, mcu_row)) return false;
    column += mcus;
  }
  return true;
}

bool BaselineDecoder::decode_two_mcu_rows(McuReader& reader, int64_t mcu_row) {
  const int64_t first = mcu_row * header_->mcus_per_row + cover_.first_col;
  if (!reader.seek_two(first, first + header_->mcus_per_row)) return false;
  for (int64_t column = 0; column < cover_.cols;) {
    const int64_t mcus = reader.take_two(cover_.cols - column);
    if (mcus == 0 || !transform_all(reader.blocks(), mcus, column, mcu_row) ||
        !transform_all(reader.other_blocks(), mcus, column, mcu_row + 1)) {
      return false;
    }
    column += mcus;
  }
  return true;
}

bool BaselineDecoder::transform_all(const Block* blocks, int64_t mcus, int64_t column,
                                    int64_t mcu_row) {
  return std::all_of(planes_.begin(), planes_.end(),
                     [&](Plane& plane) { return transform(blocks, mcus, column, mcu_row, plane); });
}

// `column`: of the first of the MCUs in the cover.
bool BaselineDecoder::transform(const Block* blocks, int64_t mcus, int64_t column, int64_t mcu_row,
                                Plane& plane) {
  for (int v = 0; v < plane.vertical; ++v) {
    blocks_.clear();
    for (int64_t mcu = 0; mcu < mcus; ++mcu) {
      const Block* block =
          blocks + mcu * blocks_per_mcu_ + plane.first_block + v * plane.horizontal;
      for (int h = 0; h < plane.horizontal; ++h) {
        blocks_.push_back(block[h].coefficients.data());
      }
    }
    uint8_t* const out =
        plane.row((mcu_row * plane.vertical + v) * kBlock) + column * plane.horizontal * kBlock;
    const auto count = static_cast<int64_t>(blocks_.size());
    if (!inverse_dct(blocks_.data(), count, plane.quantization, out, plane.stride)) return false;
  }
  return true;
}

// Repeats the first and the last sample of each row for the upsampling.
void BaselineDecoder::repeat_edges(int64_t mcu_row, Plane& plane) {
  const int64_t columns = std::min(plane.columns, cover_.cols * plane.horizontal * kBlock);
  for (int64_t i = 0; i < plane.vertical * kBlock; ++i) {
    uint8_t* const row = plane.row(mcu_row * plane.vertical * kBlock + i);
    row[-1] = row[0];
    row[columns] = row[columns - 1];
  }
}

void BaselineDecoder::write_row(int64_t y, const Box& box, uint8_t* out) {
  const uint8_t* luma = planes_[0].row(y) + cover_.left;
  if (planes_.size() == 1) {
    // Grayscale is converted by neutral chroma.
    write_pixels(luma, gray_.data(), gray_.data(), box.width, out);
  } else if (header_->components[0].horizontal == 2) {
    write_half_row(y, box, out);
  } else {
    const uint8_t* blue = full_row(planes_[1], y, box.width, blue_);
    const uint8_t* red = full_row(planes_[2], y, box.width, red_);
    write_pixels(luma, blue, red, box.width, out);
  }
}

void BaselineDecoder::write_half_row(int64_t y, const Box& box, uint8_t* out) {
  const bool starts_right = cover_.left % 2 == 1, both = header_->components[0].vertical == 2;
  const int64_t count = (box.width + (starts_right ? 1 : 0) + 1) / 2;
  HalfRow chroma{};
  chroma.cb = half_row(planes_[1], y, count, blue_sums_);
  chroma.cr = half_row(planes_[2], y, count, red_sums_);
  // Without the vertical step, the results are sums of 4 samples, times 4.
  chroma.rounding_left = both ? 8 : 4;
  chroma.rounding_right = both ? 7 : 8;
  write_pixels(planes_[0].row(y) + cover_.left, chroma, starts_right, box.width, out);
}

// `width` samples for row y of the image from the left edge of the box on. They may be written to
// `out`.
const uint8_t* BaselineDecoder::full_row(Plane& plane, int64_t y, int64_t width,
                                         AlignedVector<uint8_t>& out) {
  const bool full = header_->components[0].vertical == 1;
  const uint8_t* const nearest = plane.row(full ? y : y / 2) + cover_.left;
  if (full) return nearest;
  double_height(nearest, plane.row_beside(y) + cover_.left, y % 2 == 1, width, out.data());
  return out.data();
}

// The same for chroma of half the width, as sums of 4 samples.
const uint16_t* BaselineDecoder::half_row(Plane& plane, int64_t y, int64_t width,
                                          AlignedVector<uint16_t>& out) {
  const int64_t left = cover_.left / 2;
  const bool full = header_->components[0].vertical == 1;
  const uint8_t* const nearest = plane.row(full ? y : y / 2) + left;
  const uint8_t* const next = full ? nearest : plane.row_beside(y) + left;
  sum_rows(nearest, next, width, out.data() + 1);
  return out.data() + 1;
}

}  // namespace custom_op

#endif
