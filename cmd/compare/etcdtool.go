package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// etcdTool is an etcd cluster that is measured with "benchmark", the load program of the etcd project. etcd reaches its
// highest request rates with this program.
type etcdTool struct {
	*etcd
	program string
}

func openEtcdTool(ctx context.Context, s *settings, dir string) (store, error) {
	program, err := exec.LookPath(s.etcdTool)
	if err != nil {
		return nil, &missingError{"etcd-tool", s.etcdTool}
	}
	e, err := startEtcd(ctx, "etcd-tool", s, dir)
	if err != nil {
		return nil, err
	}
	return &etcdTool{e, program}, nil
}

func (e *etcdTool) name() string { return "etcd-tool" }
func (e *etcdTool) about() string {
	return e.version + ", three members, client: the load program of etcd over gRPC"
}

// toolWarmUp is the number of requests in a short first run. The request rate of this run determines how many requests
// the main run makes, so that the main run takes about the desired time.
const toolWarmUp = 2000

// measure implements meter. The load program makes requests for about the given duration.
func (e *etcdTool) measure(ctx context.Context, f *figures, op operation, clients int, value string,
	duration time.Duration) error {
	var short figures
	if err := e.run(ctx, &short, op, clients, toolWarmUp, value); err != nil {
		return err
	}
	return e.run(ctx, f, op, clients, max(toolWarmUp, int(short.rate()*duration.Seconds())), value)
}

func (e *etcdTool) run(ctx context.Context, f *figures, op operation, clients, total int, value string) error {
	args := []string{"--endpoints", strings.Join(e.members, ","), "--clients", strconv.Itoa(clients),
		"--conns", strconv.Itoa(max(min(clients, 3), (clients+sharers-1)/sharers))}
	switch op {
	case strongSave:
		args = append(args, "put", "--key-size", "8", "--val-size", strconv.Itoa(len(value)))
	case strongRead:
		args = append(args, "range", "k0", "--consistency", "l")
	default:
		args = append(args, "range", "k0", "--consistency", "s")
	}
	before, known := e.cpu()
	out, err := exec.CommandContext(ctx, e.program, append(args, "--total", strconv.Itoa(total))...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	if after, ok := e.cpu(); ok && known {
		f.cpu += after - before
	}
	return readTool(f, string(out), total)
}

// readTool parses the output of the tool and adds the results to f: the total time and the latency percentiles. The
// parameter total is the number of requests.
func readTool(f *figures, text string, total int) error {
	elapsed, done := 0.0, 0
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) >= 2 && fields[0] == "Total:":
			elapsed, _ = strconv.ParseFloat(fields[1], 64)
		case len(fields) >= 3 && fields[1] == "in" && strings.HasSuffix(fields[0], "%"):
			percent, _ := strconv.ParseFloat(strings.TrimSuffix(fields[0], "%"), 64)
			seconds, err := strconv.ParseFloat(fields[2], 64)
			if err != nil {
				return fmt.Errorf("%q: %w", lines.Text(), err)
			}
			part := int(percent / 100 * float64(total))
			f.addMany(time.Duration(seconds*float64(time.Second)), part-done)
			done = part
		}
	}
	if elapsed <= 0 {
		return errors.New("the load program of etcd printed no line Total:\n" + text)
	}
	f.count += total - done // the slowest requests, above the last percentile in the output
	took := time.Duration(elapsed * float64(time.Second))
	f.elapsed += took
	f.turns = append(f.turns, float64(total)/took.Seconds())
	return nil
}
