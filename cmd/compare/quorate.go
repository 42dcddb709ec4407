package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/quorate/quorate/cmd/internal/launcher"
)

// quorate is a cluster of three nodes on this machine, or one node.
type quorate struct {
	*processes
	title   string
	program string
	version string
	args    []string
	cluster *launcher.Cluster
	bare    bool
	conns   []client
}

// findQuorate finds the quorate program for the system with the given title, and creates the directory of the system
// below dir. For the title "beside", the program is that of the flag -beside, and p is nil if this flag is not set. For
// all other titles, the program is that of the flag -quorate.
func findQuorate(title string, s *settings, dir string) (program string, p *processes, err error) {
	name := s.quorate
	if title == "beside" {
		if name = s.beside; name == "" {
			return "", nil, nil
		}
	}
	return find(title, name, dir)
}

// openQuorate returns an opener that starts a cluster of n nodes and waits until all nodes vote. The title selects the
// quorate program, as in findQuorate.
func openQuorate(title string, n int) opener {
	return func(ctx context.Context, s *settings, dir string) (store, error) {
		program, p, err := findQuorate(title, s, dir)
		if p == nil || err != nil {
			return nil, err
		}
		q := &quorate{processes: p, title: title, program: program, version: firstLine(program, "version"),
			args: s.quorateArgs, bare: s.bare}
		if q.cluster, err = p.startCluster(ctx, program, n, s.quorateArgs...); err != nil {
			defer p.end()
			return nil, p.failed(err)
		}
		return q, nil
	}
}

// startCluster starts a cluster of Quorate with additional flags, and waits until all nodes vote.
func (p *processes) startCluster(ctx context.Context, program string, size int, flags ...string) (*launcher.Cluster,
	error) {
	c, err := launcher.New(ctx, launcher.Plan{Program: program, Dir: p.dir, Size: size,
		Flags: append([]string{"--enable-grpc=false", "--log-level", "warn"}, flags...)})
	if err != nil {
		return nil, err
	}
	for _, n := range c.Nodes {
		if err := p.startNode(n); err != nil {
			return nil, err
		}
	}
	return c, c.Formed(ctx, func(string) {})
}

// addressesOf returns the addresses of the HTTP API of all nodes.
func addressesOf(c *launcher.Cluster) (addresses []string) {
	for _, n := range c.Nodes {
		addresses = append(addresses, n.Address())
	}
	return addresses
}

func (q *quorate) name() string { return q.title }
func (q *quorate) about() string {
	client := "net/http"
	if q.bare {
		client = "a bare one over HTTP/1.1"
	}
	return strings.TrimSpace(fmt.Sprintf("%s, nodes: %d, client %s %s", q.version, len(q.cluster.Nodes), client,
		strings.Join(q.args, " ")))
}

func (q *quorate) clients(n int) ([]client, error) {
	for i := len(q.conns); i < n; i++ {
		q.conns = append(q.conns, q.at(i%len(q.cluster.Nodes)))
	}
	return q.conns[:n], nil
}

// quorateClientOf returns a client of the API at a URL. If minimal is true, the client uses the type bare, which has
// very little overhead. Otherwise it uses net/http.
func quorateClientOf(url string, minimal bool) *quorateClient {
	if minimal {
		return &quorateClient{(&bare{address: hostPort(url)}).fetch}
	}
	return &quorateClient{library(url)}
}

// quorateClient sends requests with fetch, which returns only successful responses.
type quorateClient struct {
	fetch func(ctx context.Context, method, path string, body []byte) ([]byte, error)
}

const quorateStore = "/v1.0/state/statestore"

func (c *quorateClient) save(ctx context.Context, key, value string) error {
	_, err := c.fetch(ctx, http.MethodPost, quorateStore,
		[]byte(`[{"key":"`+key+`","value":"`+value+`","options":{"consistency":"strong"}}]`))
	return err
}

func (c *quorateClient) lock(ctx context.Context, name string) error {
	owner := `{"resourceId":"` + name + `","lockOwner":"owner"`
	got, err := c.fetch(ctx, http.MethodPost, "/v1.0/lock/lockstore",
		fmt.Appendf(nil, `%s,"expiryInSeconds":%d}`, owner, int(lockTime.Seconds())))
	if err != nil || !bytes.Contains(got, []byte(`"success":true`)) {
		return cmp.Or(err, errLocked)
	}
	got, err = c.fetch(ctx, http.MethodPost, "/v1.0/unlock/lockstore", []byte(owner+"}"))
	if err != nil || !bytes.Contains(got, []byte(`"status":0`)) {
		return cmp.Or(err, errLocked)
	}
	return nil
}

func (c *quorateClient) read(ctx context.Context, key string, strong bool) (string, error) {
	level := "eventual"
	if strong {
		level = "strong"
	}
	body, err := c.fetch(ctx, http.MethodGet, quorateStore+"/"+key+"?consistency="+level, nil)
	return strings.Trim(string(body), `"`), err
}

// library returns a fetch function for a quorateClient. It uses net/http with a connection of its own.
func library(node string) func(context.Context, string, string, []byte) ([]byte, error) {
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
	return func(ctx context.Context, method, path string, body []byte) ([]byte, error) {
		r, err := http.NewRequestWithContext(ctx, method, node+path, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		answer, err := c.Do(r)
		if err != nil {
			return nil, err
		}
		return success(answer, method, path)
	}
}

// success returns the body of a response, or an error if the status is not a success.
func success(answer *http.Response, method, path string) ([]byte, error) {
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s %s", method, path, answer.Status, got)
	}
	return got, err
}

// printSizes prints the resident memory of the first node and the size of the program. It omits the memory if it
// cannot read it.
func (q *quorate) printSizes(out io.Writer) error {
	program, err := os.Stat(q.program)
	if err != nil {
		return err
	}
	size := megabytes(float64(program.Size()) / 1e6)
	fmt.Fprintf(out, "quorate: the program has %s%s", size, exceeded(size, programGoal))
	if memory, ok := resident(q.all[0].Pid()); ok {
		fmt.Fprintf(out, ", the idle node %s%s", memory, exceeded(memory, memoryGoal))
	}
	fmt.Fprintln(out)
	return nil
}

// resident returns the resident memory of a process, and false if it cannot be read.
func resident(pid int) (megabytes, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, false
	}
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	fields := strings.Fields(after)
	if len(fields) == 0 {
		return 0, false
	}
	kib, err := strconv.ParseFloat(fields[0], 64)
	return megabytes(kib * 1024 / 1e6), err == nil
}
