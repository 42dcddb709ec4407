package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
)

// failing is a cluster whose leader can be killed.
type failing interface {
	store
	// leader returns the number of the process that leads, from 0. It returns an error while it is unknown, or while a
	// member is not ready to replace the leader.
	leader(ctx context.Context) (int, error)
	// kill ends a process with SIGKILL. restart starts it again with its data.
	kill(process int) error
	restart(process int) error
	// at returns a client that sends its requests to one process.
	at(process int) client
}

const (
	retryPause  = 5 * time.Millisecond   // pause between two saves
	retryBudget = time.Minute            // how long saves are retried
	tryTimeout  = 500 * time.Millisecond // of one save, so that a hanging save does not hide that saves work again
)

// printFailover kills the leader of each cluster several times, and prints the time without successful saves. This is
// the time from the kill to the first successful save at one of the two remaining processes.
func printFailover(ctx context.Context, s *settings, out io.Writer, stores []store) error {
	fmt.Fprintf(out, "\n%d kills of the leader with SIGKILL, each after all members have caught up\n\n", s.kills)
	fmt.Fprintln(out, "| | kills | median until a save succeeds | slowest |\n| --- | --- | --- | --- |")
	times := make([][]time.Duration, len(stores))
	for range s.kills {
		for i, st := range stores {
			f, ok := st.(failing)
			if !ok {
				return fmt.Errorf("%s: %w", st.name(), errors.ErrUnsupported)
			}
			took, err := failover(ctx, f)
			if err != nil {
				return fmt.Errorf("%s: %w", st.name(), err)
			}
			times[i] = append(times[i], took)
		}
	}
	for i, st := range stores {
		slices.Sort(times[i])
		median := times[i][len(times[i])/2].Round(time.Millisecond)
		mark := ""
		if i == 0 {
			mark = exceeded(median, failoverGoal)
		}
		fmt.Fprintf(out, "| %s | %d | %s%s | %s |\n", st.name(), s.kills, median, mark,
			slices.Max(times[i]).Round(time.Millisecond))
	}
	fmt.Fprintln(out)
	return nil
}

// failover kills the leader and starts it again. It returns the time from the kill to the first successful save.
func failover(ctx context.Context, f failing) (time.Duration, error) {
	var leader int
	if err := until(ctx, func() (err error) {
		leader, err = f.leader(ctx)
		return err
	}); err != nil {
		return 0, err
	}
	others := []client{f.at((leader + 1) % 3), f.at((leader + 2) % 3)}
	for _, c := range others { // open the connections before the kill
		if err := c.save(ctx, "failover", "before"); err != nil {
			return 0, err
		}
	}
	if err := f.kill(leader); err != nil {
		return 0, err
	}
	killed := time.Now()
	took, err := firstSave(ctx, others, killed)
	return took, errors.Join(err, f.restart(leader))
}

// firstSave repeats a save until it succeeds, and alternates between the clients. since is the time of the kill, and
// the result is the time from then to the successful save. After retryBudget, it gives up and returns the last error.
func firstSave(ctx context.Context, clients []client, since time.Time) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, retryBudget)
	defer cancel()
	for i := 0; ; i++ {
		try, end := context.WithTimeout(ctx, tryTimeout)
		err := clients[i%len(clients)].save(try, "failover", "after "+strconv.Itoa(i))
		end()
		if err == nil {
			return time.Since(since), nil
		}
		select {
		case <-ctx.Done():
			return 0, err
		case <-time.After(retryPause):
		}
	}
}

// kill ends a process with SIGKILL.
func (p *processes) kill(process int) error {
	p.all[process].Kill()
	return nil
}

// restart starts a killed process with the same arguments. The output is appended to the log file of the process.
func (p *processes) restart(process int) error { return p.all[process].Start() }

// leader implements failing. It gets the leader of the first group from the first node. It returns an error until every
// voter has caught up, because a voter that lags may be unable to replace the killed leader.
func (q *quorate) leader(ctx context.Context) (int, error) {
	if err := q.cluster.Check(ctx); err != nil {
		return 0, err
	}
	status, err := q.cluster.Nodes[0].Status(ctx)
	if err != nil {
		return 0, err
	}
	return quorateLeader(status)
}

// quorateLeader returns the number of the node that leads the first group, counted from 0. It returns an error if
// no leader is known or a server lags.
func quorateLeader(s schema.NodeStatus) (int, error) {
	if len(s.Groups) == 0 || s.Groups[0].Leader == "" || !s.Groups[0].Writes {
		return 0, errors.New("quorate: no leader is known")
	}
	for _, server := range s.Groups[0].Servers {
		if server.Lag != nil && *server.Lag > 0 {
			return 0, fmt.Errorf("quorate: %s is %d entries behind", server.Node, *server.Lag)
		}
	}
	var n int
	if _, err := fmt.Sscanf(s.Groups[0].Leader, "n%d", &n); err != nil {
		return 0, fmt.Errorf("quorate: leader %q: %w", s.Groups[0].Leader, err)
	}
	return n - 1, nil
}

func (q *quorate) at(process int) client {
	return quorateClientOf(q.cluster.Nodes[process].Base(), q.bare)
}

// leader implements failing. It queries every member, and returns an error until all of them have the same leader and
// have applied the same entries.
func (e *etcd) leader(ctx context.Context) (int, error) {
	var leader, applied uint64
	number := -1
	for i, url := range e.members {
		status, err := e.conns[i].Status(ctx, url)
		if err != nil {
			return 0, err
		}
		if i > 0 && (status.Leader != leader || status.RaftAppliedIndex != applied) {
			return 0, errors.New("etcd: a member has not caught up")
		}
		leader, applied = status.Leader, status.RaftAppliedIndex
		if status.Header.MemberId == leader {
			number = i
		}
	}
	if number < 0 {
		return 0, errors.New("etcd: no leader is known")
	}
	return number, nil
}

func (e *etcd) at(process int) client {
	return &etcdGateway{bare{address: hostPort(e.members[process])}}
}
