"""What is done with the sandbox besides the review: calibration and labelled synthetic traces."""
