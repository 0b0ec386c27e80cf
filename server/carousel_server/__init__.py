"""The Carousel server: one GPU, many chats, round-robin, sessions in memory."""

__version__ = "0.1.0"
