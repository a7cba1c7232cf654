"""mlxops: operators for MLX, generated from mlx_ops.yaml and ops/.

    >>> import mlx.core as mx
    >>> import mlxops

The operators are functions of this package and its submodules, just as ``mx.add`` is a function of
``mlx.core``. ``dispatch_table()`` lists the kernels of this build, and ``install_methods()`` makes
operators methods of ``mx.array``. The rest of the package is generated when it is built.
"""

from contextlib import suppress as _suppress

from mlxops._load import *
from mlxops._load import __version__ as __version__

# A build of selected operators may lack them.
with _suppress(ImportError):
    from mlxops.special import polygamma as polygamma
with _suppress(ImportError):
    from mlxops.special import digamma as digamma
    from mlxops.special import psi as psi
with _suppress(ImportError):
    from mlxops.special import gammaln as gammaln
    from mlxops.special import lgamma as lgamma
