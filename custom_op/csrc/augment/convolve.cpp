#include "augment/convolve.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "augment/recolor.h"

namespace custom_op {
namespace {

// Values that are added up at once, in registers: GCC's and clang's portable vectors.
constexpr int64_t kLanes = 16;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));
constexpr int64_t kTile = 2 * kLanes;

void load(const float* from, Lanes& lanes) { std::memcpy(&lanes, from, sizeof lanes); }

// The mean of weights that sum to 13, rounded: exact for sums up to 13 * 255.
uint16_t thirteenth(uint16_t sum) {
  const auto rounded = static_cast<uint16_t>(sum + 6);
  return static_cast<uint16_t>(uint32_t{rounded} * uint32_t{5042} >> 16);
}

// The mean of the first and the last pixel is the pixel itself. `sums` holds a row.
void mean_row(const uint8_t* above, const uint8_t* row, const uint8_t* below, int64_t values,
              uint16_t* __restrict sums, uint8_t* __restrict means) {
  for (int64_t i = 0; i < values; ++i) {
    sums[i] = static_cast<uint16_t>(above[i] + row[i] + below[i]);
  }
  for (int64_t i = 3; i < values - 3; ++i) {
    const int sum = sums[i - 3] + sums[i] + sums[i + 3] + 4 * row[i];
    means[i] = static_cast<uint8_t>(thirteenth(static_cast<uint16_t>(sum)));
  }
  for (const int64_t edge : {int64_t{0}, values - 3}) std::copy_n(row + edge, 3, means + edge);
}

// `at` on a line of `size` samples that is reflected at its ends.
int64_t reflected(int64_t at, int64_t size) {
  if (at < 0) return -at;
  return at < size ? at : 2 * (size - 1) - at;
}

}  // namespace

void sharpen(const Canvas& from, float factor, Canvas& to) {
  const int64_t size = from.size(), values = from.row_values();
  std::memcpy(to.row(0), from.row(0), static_cast<size_t>(from.values()));
  if (size < 3) return;
  std::vector<uint16_t> sums(static_cast<size_t>(values));
  std::vector<uint8_t> means(sums.size());
  for (int64_t y = 1; y < size - 1; ++y) {
    mean_row(from.row(y - 1), from.row(y), from.row(y + 1), values, sums.data(), means.data());
    blend(from.row(y), means.data(), 1 - factor, values, to.row(y));
  }
}

// torchvision's kernel: exp(-(x / sigma)^2) at kernel_size steps from -r / sqrt(2) to r / sqrt(2).
void GaussianBlur::set_weights(int64_t kernel_size, double sigma) {
  const int64_t radius = kernel_size / 2;
  std::vector<double> exact(static_cast<size_t>(radius + 1));
  double total = 0;
  for (int64_t k = 0; k <= radius; ++k) {
    const double steps = static_cast<double>(k) / sigma;
    exact[static_cast<size_t>(k)] = std::exp(-0.5 * steps * steps);
    total += exact[static_cast<size_t>(k)] * (k == 0 ? 1 : 2);
  }
  // Weights at the ends of the kernel that together move no value by a hundredth of a level.
  double dropped = 0;
  while (exact.size() > 1 && (dropped += 2 * exact.back() / total) < 1e-2 / 255) exact.pop_back();
  weights_.resize(exact.size());
  std::transform(exact.begin(), exact.end(), weights_.begin(),
                 [=](double weight) { return static_cast<float>(weight / total); });
}

float* GaussianBlur::blurred(int64_t y) {
  return ring_[static_cast<size_t>(y % (2 * radius_ + 1) * stride_)].values;
}

// out[i] = the weighted sum of before_[k][i] and after_[k][i].
void GaussianBlur::add_up(int64_t values, float* out) const {
  const size_t count = weights_.size();
  for (int64_t start = 0; start < values; start += kTile) {
    Lanes first, second, left, right;  // no arrays: compilers would keep them in memory
    load(before_[0] + start, first);
    load(before_[0] + start + kLanes, second);
    first *= weights_[0];
    second *= weights_[0];
    for (size_t k = 1; k < count; ++k) {
      load(before_[k] + start, left);
      load(after_[k] + start, right);
      first += (left + right) * weights_[k];
      load(before_[k] + start + kLanes, left);
      load(after_[k] + start + kLanes, right);
      second += (left + right) * weights_[k];
    }
    std::memcpy(out + start, &first, sizeof first);
    std::memcpy(out + start + kLanes, &second, sizeof second);
  }
}

void GaussianBlur::blur_row(const uint8_t* row, int64_t size, float* out) {
  float* __restrict line = line_.data() + 3 * radius_;
  for (int64_t i = 0; i < 3 * size; ++i) line[i] = row[i];
  for (int64_t x = 1; x <= radius_; ++x) {
    std::copy_n(line + 3 * x, 3, line - 3 * x);
    std::copy_n(line + 3 * (size - 1 - x), 3, line + 3 * (size - 1 + x));
  }
  for (int64_t k = 0; k <= radius_; ++k) {
    before_[static_cast<size_t>(k)] = line - 3 * k;
    after_[static_cast<size_t>(k)] = line + 3 * k;
  }
  add_up(3 * size, out);
}

void GaussianBlur::blur_columns(int64_t y, int64_t size, uint8_t* out) {
  for (int64_t k = 0; k <= radius_; ++k) {
    before_[static_cast<size_t>(k)] = blurred(reflected(y - k, size));
    after_[static_cast<size_t>(k)] = blurred(reflected(y + k, size));
  }
  add_up(3 * size, sums_.data());
  const float* __restrict sums = sums_.data();
  for (int64_t i = 0; i < 3 * size; ++i) {
    out[i] = static_cast<uint8_t>(static_cast<int>(std::min(sums[i] + 0.5F, 255.F)));
  }
}

void GaussianBlur::apply(const Canvas& from, int64_t kernel_size, float sigma, Canvas& to) {
  set_weights(kernel_size, sigma);
  const int64_t size = from.size();
  radius_ = static_cast<int64_t>(weights_.size()) - 1;
  const int64_t values = divide_up(3 * size, kTile) * kTile;
  stride_ = values / kLanes;
  line_.resize(static_cast<size_t>(values + 6 * radius_));
  ring_.resize(static_cast<size_t>(stride_ * (2 * radius_ + 1)));
  sums_.resize(static_cast<size_t>(values));
  before_.resize(weights_.size());
  after_.resize(weights_.size());
  int64_t ready = 0;
  for (int64_t y = 0; y < size; ++y) {
    for (; ready < size && ready <= y + radius_; ++ready) {
      blur_row(from.row(ready), size, blurred(ready));
    }
    blur_columns(y, size, to.row(y));
  }
}

}  // namespace custom_op
