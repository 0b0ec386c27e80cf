"""Training implementation of the qwen4_exp text model with its MTP head (packed documents, chunked DeltaNet, dense MoE compute).

Parameter names equal the checkpoint names (without the "model.language_model." prefix).  `evaluate.py` checks the numerics
against transformers.  Documents in a packed row are independent: attention masks, DeltaNet state, convolutions, n-gram
context and indexer blocks all restart where `pos` is 0 (every document starts at a multiple of the compress ratio)."""
