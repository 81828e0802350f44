#include "core/torch/device/optimizers.h"

#include <ATen/ScalarOps.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <initializer_list>
#include <optional>

namespace backplane::device {

namespace {

using at::Tensor;
using at::TensorList;
using OptionalTensor = std::optional<Tensor>;

bool is_given(const OptionalTensor& tensor) { return tensor && tensor->defined(); }

// What a gradient scaler adds to a step.
class Scaling {
 public:
  Scaling(const OptionalTensor& scale, const OptionalTensor& found_infinite) : scale_(scale) {
    if (is_given(found_infinite)) is_finite_ = at::eq(*found_infinite, 0);
  }
  // The unscaled gradient is written back, as the CPU's kernel does.
  Tensor unscale(Tensor gradient) const {
    if (!is_given(scale_)) return gradient;
    gradient.copy_(gradient / *scale_);
    return gradient;
  }
  // A step with an infinite gradient changes nothing. Decided on the device, without reading.
  void write(Tensor target, const Tensor& value) const {
    target.copy_(is_finite_.defined() ? at::where(is_finite_, value, target) : value);
  }

 private:
  OptionalTensor scale_;
  Tensor is_finite_;
};

// What the CPU's kernels refuse, which the operators of a step would take; and lists that they
// trust to be as long as that of the parameters.
void check_step(const char* kernel, TensorList parameters, std::initializer_list<TensorList> beside,
                const Tensor& rate) {
  for (const TensorList& list : beside)
    TORCH_CHECK(list.size() == parameters.size(), kernel, ": expected ", parameters.size(),
                " tensors beside as many parameters, but got ", list.size());
  TORCH_CHECK(rate.numel() == 1, "a Tensor with ", rate.numel(),
              " elements cannot be converted to Scalar");
  for (const Tensor& parameter : parameters)
    TORCH_CHECK_NOT_IMPLEMENTED(parameter.is_floating_point(), '"', kernel,
                                "\" not implemented for '", parameter.scalar_type(), "'");
}

struct Adam {
  Tensor rate;
  double beta1 = 0, beta2 = 0, weight_decay = 0, epsilon = 0;
  bool amsgrad = false, maximize = false;
  bool decouples_decay = false;  // AdamW
};

// 1 - beta^step, exact also where beta^step is nearly 1.
Tensor bias_correction(double beta, const Tensor& step) {
  return at::expm1(step * std::log(beta)).neg();
}

void step_adam(const Adam& adam, const Scaling& scaling, TensorList parameters,
               TensorList gradients, TensorList means, TensorList squares, TensorList max_squares,
               TensorList steps) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Tensor parameter = parameters[i];
    Tensor gradient = scaling.unscale(gradients[i]);
    if (adam.maximize) gradient = gradient.neg();
    if (adam.weight_decay != 0) {
      if (adam.decouples_decay)
        parameter = parameter - parameter * adam.rate * adam.weight_decay;
      else
        gradient = gradient + parameter * adam.weight_decay;
    }
    const Tensor mean = at::lerp(means[i], gradient, 1 - adam.beta1);
    const Tensor square = at::addcmul(squares[i] * adam.beta2, gradient, gradient, 1 - adam.beta2);
    Tensor largest = square;
    if (adam.amsgrad) {
      largest = at::maximum(max_squares[i], square);
      scaling.write(max_squares[i], largest);
    }
    const Tensor deviation =
        largest.sqrt() / bias_correction(adam.beta2, steps[i]).sqrt() + adam.epsilon;
    const Tensor rate = adam.rate / bias_correction(adam.beta1, steps[i]);
    scaling.write(parameters[i], parameter - mean / deviation * rate);
    scaling.write(means[i], mean);
    scaling.write(squares[i], square);
  }
}

template <bool kDecouplesDecay>
void fused_adam_tensor_rate(TensorList parameters, TensorList gradients, TensorList means,
                            TensorList squares, TensorList max_squares, TensorList steps,
                            const Tensor& rate, double beta1, double beta2, double weight_decay,
                            double epsilon, bool amsgrad, bool maximize,
                            const OptionalTensor& scale, const OptionalTensor& found_infinite) {
  check_step("fused_adam_kernel", parameters,
             {gradients, means, squares, amsgrad ? max_squares : parameters, steps}, rate);
  const Adam adam{rate, beta1, beta2, weight_decay, epsilon, amsgrad, maximize, kDecouplesDecay};
  step_adam(adam, Scaling(scale, found_infinite), parameters, gradients, means, squares,
            max_squares, steps);
}

template <bool kDecouplesDecay>
void fused_adam(TensorList parameters, TensorList gradients, TensorList means, TensorList squares,
                TensorList max_squares, TensorList steps, double rate, double beta1, double beta2,
                double weight_decay, double epsilon, bool amsgrad, bool maximize,
                const OptionalTensor& scale, const OptionalTensor& found_infinite) {
  fused_adam_tensor_rate<kDecouplesDecay>(parameters, gradients, means, squares, max_squares, steps,
                                          at::native::wrapped_scalar_tensor(rate), beta1, beta2,
                                          weight_decay, epsilon, amsgrad, maximize, scale,
                                          found_infinite);
}

void fused_sgd_tensor_rate(TensorList parameters, TensorList gradients, TensorList momenta,
                           double weight_decay, double momentum, const Tensor& rate,
                           double dampening, bool nesterov, bool maximize, bool is_first_step,
                           const OptionalTensor& scale, const OptionalTensor& found_infinite) {
  check_step("fused_sgd_kernel", parameters, {gradients, momentum != 0 ? momenta : parameters},
             rate);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Scaling scaling(scale, found_infinite);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Tensor gradient = scaling.unscale(gradients[i]);
    if (maximize) gradient = gradient.neg();
    if (weight_decay != 0) gradient = gradient + parameters[i] * weight_decay;
    if (momentum != 0) {
      const Tensor moved =
          is_first_step ? gradient : momenta[i] * momentum + gradient * (1 - dampening);
      scaling.write(momenta[i], moved);
      gradient = nesterov ? gradient + moved * momentum : moved;
    }
    scaling.write(parameters[i], parameters[i] - gradient * rate);
  }
}

void fused_sgd(TensorList parameters, TensorList gradients, TensorList momenta, double weight_decay,
               double momentum, double rate, double dampening, bool nesterov, bool maximize,
               bool is_first_step, const OptionalTensor& scale,
               const OptionalTensor& found_infinite) {
  fused_sgd_tensor_rate(parameters, gradients, momenta, weight_decay, momentum,
                        at::native::wrapped_scalar_tensor(rate), dampening, nesterov, maximize,
                        is_first_step, scale, found_infinite);
}

}  // namespace

void register_optimizers(torch::Library& library) {
  library.impl("_fused_adam_", TORCH_FN(fused_adam<false>));
  library.impl("_fused_adam_.tensor_lr", TORCH_FN(fused_adam_tensor_rate<false>));
  library.impl("_fused_adamw_", TORCH_FN(fused_adam<true>));
  library.impl("_fused_adamw_.tensor_lr", TORCH_FN(fused_adam_tensor_rate<true>));
  library.impl("_fused_sgd_", TORCH_FN(fused_sgd));
  library.impl("_fused_sgd_.tensor_lr", TORCH_FN(fused_sgd_tensor_rate));
}

}  // namespace backplane::device
