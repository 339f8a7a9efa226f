#include "resharder/layout.h"
