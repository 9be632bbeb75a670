// Everything, in the order in which it builds on itself; included once for each type `Real`.

#include "vectors.h"
#include "matrices.h"
#include "sequences.h"
#include "features.h"
#include "factors.h"
#include "pair.h"
#include "forward.h"
#include "step.h"
#include "backward.h"
#include "pieces.h"
#include "both_ways.h"
