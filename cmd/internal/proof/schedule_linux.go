package proof

import (
	"math/rand/v2"
	"time"

	"github.com/quorate/quorate/cmd/internal/faulttest"
)

// step is one fault of a campaign.
type step struct {
	class string
	faulttest.Step
}

// deck deals faults. Every class comes before one comes again, and within a class every
// fault: equal seeds deal alike, however long the campaign is.
type deck struct {
	seed    uint64
	classes []class
	order   [][]int // of the faults of each class; dealt from the front
	next    []int   // classes that are still to come
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

// deal is the next step, and where its own chance comes from.
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
