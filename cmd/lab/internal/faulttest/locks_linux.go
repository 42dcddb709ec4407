package faulttest

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/history"
)

const (
	lockStore = "lockstore" // which every node has by default
	// lockLife is the number of operations after which clients use new locks. It keeps the history of each lock short.
	lockLife = 60
	// locksInUse is the number of locks that clients compete for.
	locksInUse = 2
)

// LockLoad has clients that acquire, renew, release and read locks through all running nodes. The clients also write
// keys with the fencing tokens of their locks. Sometimes a client stops using its lock, so the lock expires. The
// history is checked for these guarantees:
//
//   - A lock never has two owners.
//   - A lock never expires early.
//   - The tokens of a lock increase.
//   - A write succeeds only with the current token of a lock that is held.
type LockLoad struct {
	History *history.Locks

	cluster *Cluster
	stop    context.CancelFunc
	wg      sync.WaitGroup
}

// StartLocks starts the given number of clients. They run until Stop.
func StartLocks(c *Cluster, seed uint64, clients int) *LockLoad {
	ctx, cancel := context.WithCancel(context.Background())
	l := &LockLoad{History: history.NewLocks(history.WallClock()), cluster: c, stop: cancel}
	for id := range clients {
		one := &lockClient{load: l, id: id, rnd: rand.New(rand.NewPCG(seed, uint64(id)+6000))} //nolint:gosec // chance
		l.wg.Go(func() {
			for ctx.Err() == nil {
				c.pass(ctx, func() { one.one(ctx) })
			}
		})
	}
	return l
}

// Stop stops the clients and waits until they have ended.
func (l *LockLoad) Stop() {
	l.stop()
	l.wg.Wait()
}

// lockClient makes one operation on locks after another, each at a random node.
type lockClient struct {
	load  *LockLoad
	id, n int
	rnd   *rand.Rand
	name  string // of the lock that it uses
	owner string // name under which it acquired the lock; empty = never
	token uint64 // that it has got
	holds bool   // as far as it knows
}

func (c *lockClient) one(ctx context.Context) {
	nodes := c.load.cluster.Running()
	if len(nodes) == 0 {
		pause(ctx, 10*time.Millisecond)
		return
	}
	n := nodes[c.rnd.IntN(len(nodes))]
	in := history.LockCall{Lock: c.name, Owner: c.owner, Token: c.token}
	dice := c.rnd.IntN(20)
	switch {
	case c.holds && dice < 5:
		in.Op, in.Expiry = history.OpRenew, c.expiry()
	case c.holds && dice < 10:
		in.Op = history.OpWrite
	case c.holds && dice < 16:
		in.Op = history.OpUnlock
		c.holds = false
	case c.holds && dice < 18:
		in.Op = history.OpLook
	case c.holds: // it forgets the lock
		c.holds = false
		return
	case dice < 3 && c.token != 0:
		in.Op = history.OpWrite // with the token of a former owner
	case dice < 4 && c.owner != "":
		in.Op = history.OpUnlock
	case dice < 5 && c.owner != "":
		in.Op, in.Expiry = history.OpRenew, c.expiry()
	case dice < 8 && c.name != "":
		in.Op = history.OpLook
	default:
		c.n++
		c.name = fmt.Sprintf("r%d-%d", c.load.History.Size()/lockLife, c.rnd.IntN(locksInUse))
		c.owner, c.token = fmt.Sprintf("c%d-%d", c.id, c.n), 0
		in = history.LockCall{Lock: c.name, Owner: c.owner, Op: history.OpLock, Expiry: c.expiry()}
	}
	if out, known := c.do(ctx, n, in); known && out.OK {
		switch in.Op {
		case history.OpLock, history.OpRenew:
			c.holds, c.token = true, out.Token
		case history.OpUnlock, history.OpLook, history.OpWrite:
		}
	} else if in.Op == history.OpRenew || in.Op == history.OpWrite {
		c.holds = false
	}
}

func (c *lockClient) expiry() time.Duration { return time.Duration(1+c.rnd.IntN(3)) * time.Second }

// do sends an operation to a node, and records it in the history if it may have had an effect. known is false if the
// node did not return the result of the operation.
func (c *lockClient) do(ctx context.Context, n *Node, in history.LockCall) (out history.LockAnswer, known bool) {
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	in.Begin = c.load.History.Now()
	out, outcome := lockDo(limit, n, in)
	changes := in.Op == history.OpLock || in.Op == history.OpUnlock || in.Op == history.OpRenew
	switch {
	case outcome == Done:
		c.load.History.Add(c.id, in, out)
		return out, true
	case outcome == Unknown && changes:
		c.load.History.Add(c.id, in, history.LockAnswer{Unknown: true})
	}
	pause(ctx, 10*time.Millisecond)
	return out, false
}

// lockDo sends an operation on a lock to a node.
func lockDo(ctx context.Context, n *Node, in history.LockCall) (out history.LockAnswer, outcome Outcome) {
	body := text(map[string]any{"resourceId": in.Lock, "lockOwner": in.Owner,
		"expiryInSeconds": int(in.Expiry.Seconds())})
	var r reply
	var err error
	switch in.Op {
	case history.OpLock:
		r, err = n.raw(ctx, "POST", "/v1.0/lock/"+lockStore, body)
	case history.OpRenew:
		r, err = n.raw(ctx, "POST", "/v1.0/lock/"+lockStore+"/renew", body)
	case history.OpUnlock:
		r, err = n.raw(ctx, "POST", "/v1.0/unlock/"+lockStore, body)
	case history.OpLook:
		r, err = n.raw(ctx, "GET", "/v1.0/lock/"+lockStore+"/"+in.Lock, "")
	case history.OpWrite:
		write := Set("fenced-"+in.Lock, in.Owner, Strong)
		r, err = n.raw(ctx, write.Method, write.Path, write.Body, "Quorate-Lock",
			fmt.Sprintf("%s/%s@%d", lockStore, in.Lock, in.Token))
		switch {
		case err == nil && r.status == 204:
			return history.LockAnswer{OK: true}, Done
		case err == nil && r.status == 412:
			return history.LockAnswer{}, Done
		}
	}
	if err != nil {
		return out, lost(Request{}, err).Outcome
	}
	if r.status != 200 {
		return out, failure(Request{}, r.status, r.body).Outcome
	}
	var answer struct {
		Success, Held bool
		Status        int
		Revision      string
	}
	if err := json.Unmarshal(r.body, &answer); err != nil {
		return out, Unknown
	}
	out.OK, out.Status = answer.Success || answer.Held, answer.Status
	token := answer.Revision
	if token == "" {
		token = r.header.Get("Quorate-Lock-Revision")
	}
	out.Token, _ = strconv.ParseUint(token, 10, 64) // 0 if there is none
	return out, Done
}
