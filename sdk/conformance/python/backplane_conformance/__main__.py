import sys

from backplane_conformance.command import main

sys.exit(main())
