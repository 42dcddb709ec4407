package proof

import (
	"math/rand/v2"
	"time"

	"github.com/quorate/quorate/cmd/lab/internal/faulttest"
)

// step is one fault of a campaign.
type step struct {
	class string
	faulttest.Step
}

// deck chooses the next fault at random, like a deck of cards. It uses every class of faults once before it repeats a
// class. Within a class, it uses every fault once before it repeats a fault. Equal seeds give the same sequence of
// faults. So a short campaign has the same first faults as a longer campaign with the same seed.
type deck struct {
	seed    uint64
	classes []class
	order   [][]int // indexes of the faults of each class, dealt from the front
	next    []int   // remaining classes of this round
	rnd     *rand.Rand
	dealt   uint64
}

func newDeck(seed uint64) *deck {
	d := &deck{seed: seed, rnd: rand.New(rand.NewPCG(seed, 1))} //nolint:gosec // chance, not a secret
	for _, c := range classes() {
		if len(c.faults) > 0 {
			d.classes = append(d.classes, c)
		}
	}
	d.order = make([][]int, len(d.classes))
	return d
}

// deal returns the next step, and the source of randomness for its fault.
func (d *deck) deal() (step, *rand.Rand) {
	if len(d.next) == 0 {
		d.next = d.rnd.Perm(len(d.classes))
	}
	k := d.next[0]
	d.next = d.next[1:]
	c := d.classes[k]
	if len(d.order[k]) == 0 {
		d.order[k] = d.rnd.Perm(len(c.faults))
	}
	s := step{class: c.ID, Step: faulttest.Step{
		Calm:  time.Duration(200+d.rnd.IntN(800)) * time.Millisecond,
		Fault: c.faults[d.order[k][0]],
		For:   time.Duration(500+d.rnd.IntN(3000)) * time.Millisecond,
	}}
	d.order[k] = d.order[k][1:]
	d.dealt++
	return s, rand.New(rand.NewPCG(d.seed, 1000+d.dealt)) //nolint:gosec // chance, not a secret
}
