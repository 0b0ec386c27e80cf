"""The Carousel operator: InferenceServer resources into GPU pods."""
