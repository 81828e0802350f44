// Special functions of double.
#pragma once

#include <cstdint>

namespace backplane::reference {

double digamma(double x);
double polygamma(std::int64_t n, double x);
double hurwitz_zeta(double s, double q);
double scaled_erfc(double x);  // exp(x^2) erfc(x)
double inverse_erf(double y);
double inverse_erfc(double q);
double incomplete_gamma(double a, double x, bool upper);  // regularized

}  // namespace backplane::reference
