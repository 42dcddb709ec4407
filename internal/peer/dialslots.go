package peer

import (
	"context"
	"fmt"
	"sync"

	"github.com/quorate/quorate/internal/fault"
)

// tunnelDials is how many tunnels to one server this node opens at the same time. It is much less than 128, which is
// the server's limit for unfinished handshakes from one address (see package pending), because several nodes may share
// an address.
const tunnelDials = 32

// dialSlots limits how many connections to each server are opened at the same time. It is safe for concurrent use.
type dialSlots struct {
	mu      sync.Mutex
	servers map[string]*slots // only of servers that a caller is dialing or waits for
}

type slots struct {
	taken chan struct{} // capacity tunnelDials
	users int           // callers that hold a slot or wait for one
}

// take waits for a slot. The caller must call give when the connection is open or has failed. If ctx ends first, take
// returns fault.Unavailable.
func (d *dialSlots) take(ctx context.Context, server string) (give func(), err error) {
	s := d.join(server)
	select {
	case s.taken <- struct{}{}:
		return func() {
			<-s.taken
			d.leave(server, s)
		}, nil
	case <-ctx.Done():
		d.leave(server, s)
		return nil, &fault.Error{Code: fault.Unavailable, Op: "peer.dial", Err: context.Cause(ctx),
			Msg: fmt.Sprintf("server %q cannot be reached: %d other connections to it are not open yet", server,
				tunnelDials)}
	}
}

func (d *dialSlots) join(server string) *slots {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.servers[server]
	if s == nil {
		s = &slots{taken: make(chan struct{}, tunnelDials)}
		d.servers[server] = s
	}
	s.users++
	return s
}

func (d *dialSlots) leave(server string, s *slots) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.users--; s.users == 0 {
		delete(d.servers, server)
	}
}
