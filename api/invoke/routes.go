package invoke

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/fault"
)

// Places chooses the instance of an application for a call. *discovery.Catalogue implements it. Implementations are
// safe for concurrent use and do no I/O.
type Places interface {
	// Pick chooses an instance that can be called and is not in tried. Errors are not_found if no node has ever served
	// the application, and unavailable if no other instance can be called now.
	Pick(app api.App, tried []discovery.Instance) (*discovery.Lease, error)
	// Settling reports whether this node may learn within seconds where an unknown application runs. It returns true
	// shortly after the start of this node, and shortly after another node has joined.
	Settling(app api.App) bool
}

// Carrier sends a call to the Callee of another node. Carry returns the errors of Callee.Take and these errors:
//
//	unavailable    the other node cannot be reached
//	timeout        the call ended before the other node was reached
//	corrupt        the answer is invalid
//	indeterminate  the call was sent, but no answer came
type Carrier interface {
	Carry(at *discovery.Instance, in *Inbound) (Answer, error)
}

// Routes finds instances of applications and sends calls to them. All applications of a node share one Routes. Calls
// fail with fault.Unavailable until Open is called, because a node serves the API before it has joined the cluster. The
// zero value is ready to use. Routes is safe for concurrent use.
type Routes struct{ ways atomic.Pointer[ways] }

type ways struct {
	places  Places
	carrier Carrier
}

// Open sets the source of instances and the carrier of calls to other nodes.
func (r *Routes) Open(p Places, c Carrier) { r.ways.Store(&ways{places: p, carrier: c}) }

func (r *Routes) pick(app api.App, tried []discovery.Instance) (*discovery.Lease, error) {
	w := r.ways.Load()
	if w == nil {
		return nil, &fault.Error{
			Code: fault.Unavailable, Op: "api.Invoke", Hint: "wait until /v1.0/healthz/outbound answers 204",
			Msg: "the node is starting: it does not know where applications run yet",
		}
	}
	return w.places.Pick(app, tried)
}

// settleTick is the interval at which a waiting call looks for an instance of its target.
const settleTick = 20 * time.Millisecond

// pickFirst picks the instance for the first attempt of a call. If it finds none, it tries again while Places.Settling
// returns true and ctx has not ended.
func (r *Routes) pickFirst(ctx context.Context, app api.App) (*discovery.Lease, error) {
	lease, err := r.pick(app, nil)
	for err != nil {
		if w := r.ways.Load(); w == nil || !w.places.Settling(app) || !sleep(ctx, settleTick) {
			break
		}
		lease, err = r.pick(app, nil)
	}
	return lease, err
}

// carry sends a call to an instance that pick has returned.
func (r *Routes) carry(at *discovery.Instance, in *Inbound) (Answer, error) {
	return r.ways.Load().carrier.Carry(at, in)
}
