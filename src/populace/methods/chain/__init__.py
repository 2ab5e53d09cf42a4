"""One method after another; agreements made before the folder was name the class by this module."""

from populace.methods.chain.protocol import Chain as Chain
