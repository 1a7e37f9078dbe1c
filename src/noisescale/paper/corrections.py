"""Where the paper is silent, contradicts itself or does not reproduce, as found here."""

CORRECTIONS = (
    (
        "The learning rate has no unit",
        "The paper does not say how its cost is normalised. With a cross-entropy averaged over the "
        "batch, its network does not train at learning rate 1, momentum 0.9 and B = 30. Averaged "
        "over the ten classes as well, a tenth of the learning rate, everything it describes "
        "appears. That is the convention of this report wherever it quotes the paper's ε.",
    ),
    (
        "The best batch size and the training set",
        "It is said to be proportional to the number of training images from 20,000 on. That is so "
        "where the number of updates is what limits training: a batch must be so large that the "
        "images are seen often enough. With four times the updates the best batch hardly grows "
        "(figure 6), and g at the peak is not the same for all training sets.",
    ),
    (
        "The penalty's share in the cost",
        "With L2 of 0.1 figure 8 depends on whether the penalty is divided by the number of "
        "classes like the cross-entropy: divided, it is too weak to close the gap; undivided, it "
        "does.",
    ),
    (
        "Footnote 1",
        "It says that at a fixed batch size the best learning rate is proportional to batch size "
        "and training-set size. By the paper's own g = ε(N/B - 1)/(1 - m) it is proportional to "
        "B/N: a larger training set wants a smaller ε.",
    ),
    (
        "The noise scale at large batches",
        "g ≈ εN/(B(1 - m)) is for B far below N. Exactly, for batches drawn without replacement, "
        "N/B is replaced by N/B - 1, and the noise vanishes at B = N.",
    ),
    (
        "The sum over eigenvalues",
        "The evidence sums ln(λ_i/λ) over eigenvalues of the cost's Hessian that are at least λ. "
        "With a prior on every parameter these are λ + h_i with h_i the curvature of the "
        "likelihood, so the sum runs over h_i at or above zero, and an unpenalised bias, whose "
        "prior is not proper, has no evidence.",
    ),
    (
        "Balanced test sets",
        "5,000 zeros and 5,000 ones are more than MNIST's test files hold (980 and 1,135): the "
        "70,000 images must be pooled.",
    ),
    (
        "Random labels",
        "That E is always positive for random labels needs permuted, balanced labels; with "
        "independent coin flips the sign at strong priors is a coin toss.",
    ),
    (
        "Figure 7's training time",
        "It keeps 10,000 updates while the effective time goes as 1/(1 - m): low momenta train "
        "less. Figure 5 compensates, with 10,000/ε updates.",
    ),
    (
        "Smaller things",
        "Appendix C says figure 7b and means 9b; appendix D writes λ for damping, the rest for L2.",
    ),
)
