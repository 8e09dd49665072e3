#include "augment/convolve.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace custom_op {
namespace {

// Values that an inner loop handles at once, so that sums stay in registers.
constexpr int64_t kTile = 32;

// Rounded; the sum of weights that count 13 is at most 13 * 255.
constexpr int kWeightOfAll = 13;

void sharpen_row(const uint8_t* above, const uint8_t* row, const uint8_t* below, float rest,
                 int64_t values, uint16_t* sums, uint8_t* out) {
  for (int64_t i = 0; i < values; ++i) {
    sums[i] = static_cast<uint16_t>(above[i] + row[i] + below[i]);
  }
  for (int64_t i = 3; i < values - 3; ++i) {
    const int sum = sums[i - 3] + sums[i] + sums[i + 3] + 4 * row[i];
    const int mean = (sum + kWeightOfAll / 2) / kWeightOfAll;
    const float value = static_cast<float>(row[i]) + static_cast<float>(mean - row[i]) * rest;
    out[i] = static_cast<uint8_t>(static_cast<int>(std::min(std::max(value, 0.F), 255.F)));
  }
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
  for (int64_t y = 1; y < size - 1; ++y) {
    sharpen_row(from.row(y - 1), from.row(y), from.row(y + 1), 1 - factor, values, sums.data(),
                to.row(y));
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

void GaussianBlur::sum_rows(const Canvas& from, int64_t y) {
  const int64_t size = from.size(), radius = static_cast<int64_t>(weights_.size()) - 1;
  float* line = line_.data() + 3 * radius;
  for (int64_t start = 0; start < from.row_values(); start += kTile) {
    float sums[kTile];
    const uint8_t* center = from.row(y) + start;
    for (int64_t i = 0; i < kTile; ++i) sums[i] = static_cast<float>(center[i]) * weights_[0];
    for (int64_t k = 1; k <= radius; ++k) {
      const uint8_t* above = from.row(reflected(y - k, size)) + start;
      const uint8_t* below = from.row(reflected(y + k, size)) + start;
      const float weight = weights_[static_cast<size_t>(k)];
      for (int64_t i = 0; i < kTile; ++i) {
        sums[i] += static_cast<float>(above[i] + below[i]) * weight;
      }
    }
    std::copy_n(sums, kTile, line + start);
  }
  for (int64_t x = -radius; x < 0; ++x) std::copy_n(line + 3 * reflected(x, size), 3, line + 3 * x);
  for (int64_t x = size; x < size + radius; ++x) {
    std::copy_n(line + 3 * reflected(x, size), 3, line + 3 * x);
  }
}

void GaussianBlur::sum_columns(int64_t size, uint8_t* out) {
  const int64_t radius = static_cast<int64_t>(weights_.size()) - 1;
  const float* line = line_.data() + 3 * radius;
  for (int64_t start = 0; start < 3 * size; start += kTile) {
    float sums[kTile];
    for (int64_t i = 0; i < kTile; ++i) sums[i] = 0.5F + line[start + i] * weights_[0];
    for (int64_t k = 1; k <= radius; ++k) {
      const float *left = line + start - 3 * k, *right = line + start + 3 * k;
      const float weight = weights_[static_cast<size_t>(k)];
      for (int64_t i = 0; i < kTile; ++i) sums[i] += (left[i] + right[i]) * weight;
    }
    for (int64_t i = 0; i < kTile; ++i) {
      out[start + i] = static_cast<uint8_t>(static_cast<int>(std::min(sums[i], 255.F)));
    }
  }
}

void GaussianBlur::apply(const Canvas& from, int64_t kernel_size, float sigma, Canvas& to) {
  set_weights(kernel_size, sigma);
  const int64_t size = from.size(), radius = static_cast<int64_t>(weights_.size()) - 1;
  line_.assign(static_cast<size_t>(3 * (size + 2 * radius) + kTile), 0);
  for (int64_t y = 0; y < size; ++y) {
    sum_rows(from, y);
    sum_columns(size, to.row(y));
  }
}

}  // namespace custom_op
