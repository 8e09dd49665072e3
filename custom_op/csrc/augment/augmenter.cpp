#include "augment/augmenter.h"

#include <cmath>
#include <utility>

#include "augment/lookup.h"
#include "augment/recolor.h"
#include "augment/statistics.h"

namespace custom_op {
namespace {

// The color that starts at `parameters`, rounded.
Rgb color_of(const float* parameters) {
  Rgb color;
  for (size_t c = 0; c < 3; ++c) color[c] = static_cast<uint8_t>(std::nearbyint(parameters[c]));
  return color;
}

int64_t whole(float value) { return static_cast<int64_t>(value); }

}  // namespace

Canvas& Augmenter::start(int64_t size) {
  current_.resize(size);
  next_.resize(size);
  return current_;
}

const Canvas& Augmenter::apply(const std::vector<Operation>& operations) {
  for (const Operation& operation : operations) apply(operation);
  return current_;
}

void Augmenter::apply(const Operation& operation) {
  const float* const p = operation.parameters;
  switch (operation.kind) {
    case OperationKind::kIdentity:
      return;
    case OperationKind::kBrightness:
      return look_up(brightness_table(p[0]), current_);
    case OperationKind::kContrast:
      return look_up(contrast_table(p[0], mean_gray(current_)), current_);
    case OperationKind::kSaturation:
      return saturate(current_, p[0]);
    case OperationKind::kHue:
      return shift_hue(current_, p[0]);
    case OperationKind::kGrayscale:
      return grayscale(current_);
    case OperationKind::kPosterize:
      return look_up(posterize_table(static_cast<int>(p[0])), current_);
    case OperationKind::kSolarize:
      return look_up(solarize_table(p[0]), current_);
    case OperationKind::kSolarizeAdd:
      return look_up(solarize_add_table(static_cast<int>(p[0])), current_);
    case OperationKind::kAutocontrast:
      return look_up(autocontrast_tables(current_), current_);
    case OperationKind::kEqualize:
      return look_up(equalize_tables(current_), current_);
    case OperationKind::kInvert:
      return look_up(invert_table(), current_);
    case OperationKind::kErase:
      return erase(whole(p[0]), whole(p[1]), whole(p[2]), whole(p[3]), color_of(p + 4), current_);
    case OperationKind::kSharpness:
      sharpen(current_, p[0], next_);
      break;
    case OperationKind::kGaussianBlur:
      blur_.apply(current_, whole(p[0]), p[1], next_);
      break;
    case OperationKind::kRotate:
    case OperationKind::kShearX:
    case OperationKind::kShearY:
    case OperationKind::kTranslateX:
    case OperationKind::kTranslateY:
      warp_.apply(current_, placement_of(operation.kind, p[0], current_.size()), p[1] != 0,
                  color_of(p + 2), next_);
      break;
  }
  std::swap(current_, next_);
}

}  // namespace custom_op
