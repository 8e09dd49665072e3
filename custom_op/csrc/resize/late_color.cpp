#include "resize/late_color.h"

#include <algorithm>

#include "resize/byte_filter.h"
#include "resize/filter.h"
#include "samples/padding.h"
#include "samples/ycbcr.h"

namespace custom_op {
namespace {

// Values before and after a line: what vector code reads and writes in vain.
constexpr int64_t kMargin = kSamplePadding + kRowPadding;
static_assert(kMargin % kCacheLine == 0);

}  // namespace

void LateColorResizer::configure(const Box& box, int64_t size, bool mirror, ResizedRows& out) {
  box_ = box;
  size_ = size;
  out_ = &out;
  vertical_.compute(box.height, size);
  vertical_bytes_.round(vertical_);
  horizontal_.compute(box.width, size);
  horizontal_bytes_.round(horizontal_);
  arrange_columns(mirror);
  const auto line = static_cast<size_t>(box.width + 2 * kMargin);
  for (auto& samples : samples_) samples.resize(line);
  for (auto& sums : sums_) sums.resize(line);
  const auto past_end = horizontal_bytes_.groups() * ByteWeights::kGroup + 2;
  rgb_.resize(3 * (line + static_cast<size_t>(past_end)));
  row_.resize(static_cast<size_t>(pixels_for(size) * 3 + kPixelPadding));
  rows_.resize(static_cast<size_t>(vertical_.longest() + 4));
}

void LateColorResizer::arrange_columns(bool mirror) {
  const int64_t pixels = pixels_for(size_);
  const int64_t groups = horizontal_bytes_.groups();
  starts_.assign(static_cast<size_t>(pixels), 0);
  columns_.assign(static_cast<size_t>(pixels / 2 * groups * kWeightsPerGroup), 0);
  for (int64_t x = 0; x < size_; ++x) {
    const int64_t from = mirror ? size_ - 1 - x : x;
    starts_[static_cast<size_t>(x)] = static_cast<int32_t>(3 * horizontal_.first(from));
    const int8_t* weights = horizontal_bytes_.weights(from);
    int8_t* to = columns_.data() + x / 2 * groups * kWeightsPerGroup + x % 2 * 16;
    for (int64_t k = 0; k < groups; ++k, to += kWeightsPerGroup) {
      for (int64_t i = 0; i < 6; ++i) {
        std::copy_n(weights + k * ByteWeights::kGroup + i / 3 * 2, 2, to + i / 3 * 8 + i % 3 * 2);
      }
    }
  }
}

void LateColorResizer::begin(const SamplePlanes& planes) {
  planes_ = planes;
  emitted_ = 0;
  if (!planes.half_height) return;
  half_vertical_.halve(vertical_, box_.top, planes.chroma_rows);
  half_vertical_bytes_.round(half_vertical_);
}

bool LateColorResizer::is_ready(int64_t y, int64_t end) const {
  if (box_.top + vertical_.first(y) + vertical_.count(y) > end) return false;
  return !planes_.half_height || half_vertical_.first(y) + half_vertical_.count(y) <=
                                     std::min(end / 2, planes_.chroma_rows);
}

void LateColorResizer::decoded(int64_t end) {
  while (emitted_ < vertical_.size() && is_ready(emitted_, end)) emit(emitted_++);
}

void LateColorResizer::emit(int64_t y) {
  convert(y);
  // A weight of 1 does not fit into a byte, so the pixel beside a single one counts, too.
  uint8_t* const end = rgb_.data() + 3 * (kMargin + box_.width);
  std::copy_n(end - 3, 3, end);
  filter_bytes_horizontally(rgb_.data() + 3 * kMargin, starts_.data(), columns_.data(),
                            horizontal_bytes_.groups(), pixels_for(size_), row_.data());
  out_->resized(y, row_.data());
}

// Points rows_ to the samples for row y of the result; returns how many, an even number.
int64_t LateColorResizer::gather(size_t component, const AxisWeights& weights, int64_t y,
                                 int64_t origin) {
  const int64_t count = weights.count(y), taps = (count + 1) / 2 * 2;
  for (int64_t k = 0; k < taps; ++k) {
    const int64_t row = origin + weights.first(y) + std::min(k, count - 1);
    rows_[static_cast<size_t>(k)] = planes_.components[component].row(row);
  }
  return taps;
}

// Writes row y of the result in full width, as RGB.
void LateColorResizer::convert(int64_t y) {
  const int64_t width = box_.width;
  uint8_t* const rgb = rgb_.data() + 3 * kMargin;
  const auto samples = [&](size_t i) { return samples_[i].data() + kMargin; };
  const auto sums = [&](size_t i) { return sums_[i].data() + kMargin; };
  filter_bytes_vertically(rows_.data(), vertical_bytes_.weights(y),
                          gather(0, vertical_, y, box_.top), width, samples(0));
  if (!planes_.has_chroma) {
    std::fill_n(samples(1), width + kSamplePadding, uint8_t{128});
    return write_pixels(samples(0), samples(1), samples(1), width, Color::kRgb, rgb);
  }
  const bool half = planes_.half_height;
  const int8_t* weights = (half ? half_vertical_bytes_ : vertical_bytes_).weights(y);
  for (const size_t c : {1, 2}) {
    const int64_t taps = half ? gather(c, half_vertical_, y, 0) : gather(c, vertical_, y, box_.top);
    if (planes_.half_width) {
      for (int64_t k = 0; k < taps; ++k) --rows_[static_cast<size_t>(k)];
      filter_sums_vertically(rows_.data(), weights, taps, width / 2 + 3, sums(c) - 1);
    } else {
      filter_bytes_vertically(rows_.data(), weights, taps, width, samples(c));
    }
  }
  if (planes_.half_width) {
    const HalfRow chroma{sums(1), sums(2), 8, 7};
    return write_pixels(samples(0), chroma, box_.left % 2 == 1, width, Color::kRgb, rgb);
  }
  write_pixels(samples(0), samples(1), samples(2), width, Color::kRgb, rgb);
}

}  // namespace custom_op
