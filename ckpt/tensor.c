#include "ckpt/tensor.h"
