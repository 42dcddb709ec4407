// Package trust decides which nodes belong to a cluster. From a cluster token it derives a
// key for gossip and a certificate authority that is the same on every node, issues this
// node's certificate, and judges the certificates of others; or it does the last of these
// with certificates that were made elsewhere.
//
// It owns the form of tokens, the labels of derived keys, what a certificate of a node says,
// and the reasons for which one is refused. It must never know files, the network, gossip
// or what the nodes talk about: material is handed to it, and the clock too. It has no
// goroutines; a Keeper is safe for concurrent use, all else is immutable.
package trust

import (
	"errors"

	"github.com/quorate/quorate/internal/fault"
)

// Doubt is why a certificate is refused. The set is closed; its texts are metric labels.
type Doubt string

// The doubts.
const (
	Foreign Doubt = "authority"   // issued by an authority that this node does not accept
	Untimed Doubt = "expired"     // its time is over, or has not come: by this node's clock
	Unfit   Doubt = "certificate" // it is of the right authority and does not say what is needed
)

// Distrust is a certificate refused. It stands in the chain of the errors of this package.
type Distrust struct {
	Doubt Doubt
	Err   *fault.Error
}

// Error is what the fault says.
func (d *Distrust) Error() string { return d.Err.Text() }

// Unwrap returns the fault.
func (d *Distrust) Unwrap() error { return d.Err }

// DoubtOf returns the reason if err comes from a refused certificate.
func DoubtOf(err error) (Doubt, bool) {
	var d *Distrust
	if errors.As(err, &d) {
		return d.Doubt, true
	}
	return "", false
}

func distrust(d Doubt, msg, hint string) *Distrust {
	return &Distrust{Doubt: d, Err: &fault.Error{Code: fault.Denied, Op: "trust.Verify", Msg: msg, Hint: hint}}
}
