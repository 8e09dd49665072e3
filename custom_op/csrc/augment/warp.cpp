#include "augment/warp.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace custom_op {
namespace {

// Note [Coordinates]
// Source coordinates are fixed-point numbers with 32 fractional bits, which are added up along a
// row. Sizes have 14 bits, and placement_of keeps factors below 16 bits, so nothing overflows. The
// columns of a row whose source is inside the image are computed once per row: the loops over
// pixels do not check bounds.
constexpr int kBits = 32;
constexpr int64_t kOne = int64_t{1} << kBits, kHalf = kOne / 2;
// A shear by more moves everything outside the image, whatever its size.
constexpr double kMostTangent = 1 << 15;

int64_t fixed(double value) { return std::llround(value * static_cast<double>(kOne)); }

int64_t floor_divide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

// The source of a row: of its first pixel, and what every further pixel adds.
struct Line {
  int64_t x, y, x_step, y_step;
};

// Whether the source is a part of one row, pixel for pixel.
bool along_row(const Line& line) { return line.x_step == kOne && line.y_step == 0; }

struct Span {
  int64_t first, end;
};

// Limits `span` to the pixels with least <= start + x * step < end.
void limit(int64_t start, int64_t step, int64_t least, int64_t end, Span& span) {
  if (step == 0) {
    if (start < least || start >= end) span.end = span.first;
    return;
  }
  // The first pixel at `least` or `end` or past it, in the direction of the step.
  const auto reaching = [=](int64_t value) { return -floor_divide(start - value, step); };
  const auto passing = [=](int64_t value) { return floor_divide(value - start, step) + 1; };
  span.first = std::max(span.first, step > 0 ? reaching(least) : passing(end));
  span.end = std::min(span.end, step > 0 ? reaching(end) : passing(least));
  span.end = std::max(span.first, span.end);
}

// The pixels of the row whose source is at least `least` and below `end` in x and y.
Span span_inside(const Line& line, int64_t least, int64_t end, int64_t size) {
  Span span{0, size};
  limit(line.x, line.x_step, least, end, span);
  limit(line.y, line.y_step, least, end, span);
  return {std::min(span.first, size), std::min(span.end, size)};
}

void copy_nearest(const Canvas& from, Line line, Span span, uint8_t* out) {
  const int64_t stride = from.row_values();
  const uint8_t* pixels = from.row(0);
  if (along_row(line)) {
    const int64_t x = (line.x >> kBits) + span.first, y = line.y >> kBits;
    std::memcpy(out + 3 * span.first, pixels + y * stride + 3 * x,
                static_cast<size_t>(3 * (span.end - span.first)));
    return;
  }
  line.x += span.first * line.x_step;
  line.y += span.first * line.y_step;
  for (int64_t x = span.first; x < span.end; ++x) {
    // Four bytes at once; the next pixel or row overwrites the last one.
    std::memcpy(out + 3 * x, pixels + (line.y >> kBits) * stride + 3 * (line.x >> kBits), 4);
    line.x += line.x_step;
    line.y += line.y_step;
  }
}

// Note [Three channels in one number]
// The channels of a pixel lie 21 bits apart in 64 bits, so that one multiplication weighs all of
// them. Four weights that sum to 1 << kWeightBits add up to less than 21 bits.
constexpr int kChannelBits = 21, kWeightBits = 12;
constexpr uint64_t kWeightOne = 1 << kWeightBits;
constexpr uint64_t kRounding =
    (uint64_t{1} | uint64_t{1} << kChannelBits | uint64_t{1} << (2 * kChannelBits))
    << (kWeightBits - 1);

void spread(const Canvas& from, std::vector<uint64_t>& pixels) {
  const int64_t count = from.size() * from.size();
  pixels.resize(static_cast<size_t>(count));
  const uint8_t* values = from.row(0);
  uint64_t* out = pixels.data();
  for (int64_t i = 0; i < count; ++i) {
    out[i] = uint64_t{values[3 * i]} | uint64_t{values[3 * i + 1]} << kChannelBits |
             uint64_t{values[3 * i + 2]} << (2 * kChannelBits);
  }
}

// The fraction of a coordinate.
uint64_t weight_of(int64_t coordinate) {
  return static_cast<uint64_t>(coordinate >> (kBits - kWeightBits)) & (kWeightOne - 1);
}

void blend_inside(const uint64_t* pixels, int64_t size, Line line, Span span, uint8_t* out) {
  line.x += span.first * line.x_step;
  line.y += span.first * line.y_step;
  for (int64_t x = span.first; x < span.end; ++x) {
    const uint64_t* above = pixels + (line.y >> kBits) * size + (line.x >> kBits);
    const uint64_t* below = above + size;
    const uint64_t right = weight_of(line.x), lower = weight_of(line.y);
    const uint64_t last = (right * lower) >> kWeightBits;
    const uint64_t sum = above[0] * (kWeightOne - right - lower + last) +
                         above[1] * (right - last) + below[0] * (lower - last) + below[1] * last +
                         kRounding;
    for (int c = 0; c < 3; ++c) {
      out[3 * x + c] = static_cast<uint8_t>(sum >> (c * kChannelBits + kWeightBits));
    }
    line.x += line.x_step;
    line.y += line.y_step;
  }
}

// The same if the source is a row: all pixels have the same weights.
void blend_along_row(const Canvas& from, const Line& line, Span span, uint8_t* out) {
  const uint8_t* left = from.row(line.y >> kBits) + 3 * ((line.x >> kBits) + span.first);
  const auto weight = static_cast<uint16_t>((line.x >> (kBits - 8)) & 255);
  const auto rest = static_cast<uint16_t>(256 - weight);
  uint8_t* to = out + 3 * span.first;
  for (int64_t i = 0; i < 3 * (span.end - span.first); ++i) {
    to[i] = static_cast<uint8_t>(
        static_cast<uint16_t>(left[i] * rest + left[i + 3] * weight + 128) >> 8);
  }
}

// A pixel whose source is partly outside: torchvision takes zeros there, then blends with the fill.
void blend_edge(const Canvas& from, int64_t x, int64_t y, const Rgb& fill, uint8_t* out) {
  const auto fraction = [](int64_t coordinate) {
    return static_cast<float>(coordinate & (kOne - 1)) / static_cast<float>(kOne);
  };
  float inside = 0, sums[3] = {};
  for (int i = 0; i < 4; ++i) {
    const int64_t column = (x >> kBits) + i % 2, row = (y >> kBits) + i / 2;
    if (column < 0 || column >= from.size() || row < 0 || row >= from.size()) continue;
    const float weight =
        (i % 2 == 0 ? 1 - fraction(x) : fraction(x)) * (i / 2 == 0 ? 1 - fraction(y) : fraction(y));
    inside += weight;
    const uint8_t* pixel = from.row(row) + 3 * column;
    for (int c = 0; c < 3; ++c) sums[c] += static_cast<float>(pixel[c]) * weight;
  }
  for (size_t c = 0; c < 3; ++c) {
    const float color = fill[c];
    out[c] = static_cast<uint8_t>(std::nearbyint((sums[c] - color) * inside + color));
  }
}

Span nearest_row(const Canvas& from, Line line, uint8_t* out) {
  line.x += kHalf;
  line.y += kHalf;
  const Span span = span_inside(line, 0, from.size() * kOne, from.size());
  copy_nearest(from, line, span, out);
  return span;
}

bool is_whole(const Line& line) {
  return ((line.x | line.y | line.x_step | line.y_step) & (kOne - 1)) == 0;
}

// Blends the pixels whose source is inside the image, then those on its edge.
Span blend_row(const Canvas& from, const uint64_t* pixels, const Line& line, const Rgb& fill,
               uint8_t* out) {
  const int64_t size = from.size();
  if (is_whole(line)) return nearest_row(from, line, out);
  const Span span = span_inside(line, 1 - kOne, size * kOne, size);
  Span inner = span_inside(line, 0, (size - 1) * kOne, size);
  if (inner.first >= inner.end) inner = {span.end, span.end};
  if (along_row(line)) {
    blend_along_row(from, line, inner, out);
  } else {
    blend_inside(pixels, size, line, inner, out);
  }
  for (int64_t x = span.first; x < span.end; ++x) {
    if (x == inner.first) x = inner.end;
    if (x >= span.end) break;
    blend_edge(from, line.x + x * line.x_step, line.y + x * line.y_step, fill, out + 3 * x);
  }
  return span;
}

}  // namespace

Placement placement_of(OperationKind kind, float amount, int64_t size) {
  const auto length = static_cast<double>(size);
  const double pixels = std::clamp(double{amount}, -length, length);
  const double tangent = std::clamp(double{amount}, -kMostTangent, kMostTangent);
  switch (kind) {
    case OperationKind::kShearX:
      return {1, tangent, tangent / 2, 0, 1, 0};
    case OperationKind::kShearY:
      return {1, 0, 0, tangent, 1, tangent / 2};
    case OperationKind::kTranslateX:
      return {1, 0, -pixels, 0, 1, 0};
    case OperationKind::kTranslateY:
      return {1, 0, 0, 0, 1, -pixels};
    default:
      break;
  }
  const double angle = std::fmod(double{amount}, 360) * (std::acos(-1.0) / 180);
  const double cosine = std::cos(angle), sine = std::sin(angle), center = (length - 1) / 2;
  return {cosine, -sine, center * (1 - cosine + sine), sine, cosine, center * (1 - sine - cosine)};
}

void Warp::apply(const Canvas& from, const Placement& placement, bool bilinear, const Rgb& fill,
                 Canvas& to) {
  const int64_t size = from.size();
  fill_.resize(static_cast<size_t>(from.row_values()));
  for (size_t i = 0; i < fill_.size(); ++i) fill_[i] = fill[i % 3];
  Line line{0, 0, fixed(placement.x_from_x), fixed(placement.y_from_x)};
  if (bilinear && !along_row(line)) spread(from, spread_);
  for (int64_t y = 0; y < size; ++y) {
    const auto row = static_cast<double>(y);
    line.x = fixed(placement.x_from_y * row + placement.x_start);
    line.y = fixed(placement.y_from_y * row + placement.y_start);
    uint8_t* out = to.row(y);
    const Span span =
        bilinear ? blend_row(from, spread_.data(), line, fill, out) : nearest_row(from, line, out);
    std::memcpy(out, fill_.data(), static_cast<size_t>(3 * span.first));
    std::memcpy(out + 3 * span.end, fill_.data(), static_cast<size_t>(3 * (size - span.end)));
  }
}

void erase(int64_t top, int64_t left, int64_t height, int64_t width, const Rgb& fill,
           Canvas& canvas) {
  for (int64_t y = top; y < top + height; ++y) {
    uint8_t* row = canvas.row(y) + 3 * left;
    for (int64_t x = 0; x < width; ++x) std::memcpy(row + 3 * x, fill.data(), 3);
  }
}

}  // namespace custom_op
