#include "planes.hpp"
#include "text.hpp"

namespace backplane::kernels {

using kernelgen::Op;

Planes Planes::for_image(const Window& w, const Shape& out, std::int64_t channels) {
  Planes planes;
  planes.out = out;
  planes.rows = out[0] + (w.kernel[0] - 1) * w.dilation[0] / w.stride[0];
  planes.pitch = out[1] + (w.kernel[1] - 1) * w.dilation[1] / w.stride[1];
  planes.plane = planes.phase = planes.rows * planes.pitch;
  planes.channel = planes.phase * w.stride[0] * w.stride[1];
  planes.image = planes.channel * channels;
  return planes;
}

Planes Planes::for_taps(const Window& w, const Shape& out, std::int64_t images) {
  Planes planes;
  planes.by_tap = true;
  planes.out = out;
  planes.rows = out[0];
  planes.pitch = out[1];
  planes.image = product(out);
  planes.plane = planes.phase = planes.image * images;
  planes.channel = planes.phase * product(w.kernel);
  return planes;
}

std::string Planes::shift(const Window& w, const std::string& ky, const std::string& kx) const {
  if (by_tap) return "(" + ky + " * " + number(w.kernel[1]) + " + " + kx + ") * " + number(phase);
  const std::string y = "(" + ky + " * " + number(w.dilation[0]) + ")",
                    x = "(" + kx + " * " + number(w.dilation[1]) + ")", sy = number(w.stride[0]),
                    sx = number(w.stride[1]);
  return "(" + y + " % " + sy + " * " + sx + " + " + x + " % " + sx + ") * " + number(phase) +
         " + " + y + " / " + sy + " * " + number(pitch) + " + " + x + " / " + sx;
}

Status fill_planes(Builder& b, const TensorView& image, const Window& w, std::int64_t size,
                   Planes& planes) {
  planes.view = b.scratch(Storage::kF32, {size});
  const bool inner = !planes.by_tap && w.stride[0] == 1 && w.stride[1] == 1 && w.padding[0] >= 0 &&
                     w.padding[1] >= 0 && image.dims[2] + w.padding[0] <= planes.rows &&
                     image.dims[3] + w.padding[1] <= planes.pitch;
  const std::int64_t plane = planes.rows * planes.pitch,
                     parts = product(planes.by_tap ? w.kernel : w.stride);
  if (image.dims[0] * image.dims[1] * parts * plane != size ||
      (inner && image.dims[2] * image.dims[3] != plane))
    BP_SDK_RETURN_IF_ERROR(b.fill_zero(planes.view));
  if (inner) {
    TensorView target = planes.view;
    target.dims = {image.dims[0], image.dims[1], planes.rows, planes.pitch};
    target.strides = {planes.image, planes.channel, planes.pitch, 1};
    Draft d(b, image.dims);
    Indices at = d.outer();
    for (std::size_t i = 0; i < 2; ++i) at[2 + i] = d.e().add(at[2 + i], d.index(w.padding[i]));
    d.store(target, at, d.load(image, d.outer()));
    return d.finish();
  }
  const Shape& split = planes.by_tap ? w.kernel : w.stride;
  TensorView all = planes.view;
  all.dims = {image.dims[0], image.dims[1], split[0], split[1], planes.rows, planes.pitch};
  all.strides = {planes.image, planes.channel, split[1] * planes.phase,
                 planes.phase, planes.pitch,   1};
  Draft d(b, all.dims);
  Expressions& e = d.e();
  const Indices& axes = d.outer();
  Indices at = {axes[0], axes[1]};
  Expr inside = e.integer(kernelgen::Type::kBool, 1);
  for (std::size_t i = 0; i < 2; ++i) {
    const Expr part = planes.by_tap ? e.mul(axes[2 + i], d.index(w.dilation[i])) : axes[2 + i];
    const Expr position =
        e.sub(e.add(e.mul(axes[4 + i], d.index(w.stride[i])), part), d.index(w.padding[i]));
    inside = e.both(inside, e.inside(position, image.dims[2 + i]));
    at.push_back(e.clamped(position, image.dims[2 + i]));
  }
  const Expr value = e.cast(d.load(image, at), kernelgen::Type::kF32);
  d.store(all, axes, e.select(inside, value, e.constant(kernelgen::Type::kF32, 0)));
  return d.finish();
}

}  // namespace backplane::kernels
