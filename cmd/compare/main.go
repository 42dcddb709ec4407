// Command compare measures Quorate and other systems under the same load, in one run on one machine. There are three
// kinds of comparisons. State of three Quorate nodes is compared with three etcd processes and one Redis process that
// syncs every write to disk. State of one node is compared with daprd and Redis. Calls of an application are compared
// with nginx, a reverse proxy in Go and daprd. The tables have the ratios of the request rates and, on Linux, of the
// CPU time per request.
//
// Each store is used through its usual Go client: net/http for Quorate and daprd, go.etcd.io/etcd/client/v3 for etcd,
// go-redis for Redis. If etcd's own load program is given, etcd is also measured with that program. With -client http,
// Quorate, daprd and etcd are used through the same minimal HTTP client instead. Calls always use that client. The
// clients run on the same machine, so their CPU time affects the result. Clients are spread evenly over the nodes of a
// cluster. The systems take turns: while one is measured, the others are idle.
//
// Locks are those of lock.raft, of etcd's package concurrency, and of SET NX in Redis with a script that releases them.
//
// It owns the processes that it starts and their directories, and removes both. If the program of a system is not
// found, the output omits the system and mentions that.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// settings are the flags.
type settings struct {
	quorate, beside string
	etcd, redis     string
	etcdTool        string
	daprd, nginx    string
	tables          []string
	app             *application
	proxy           string // not empty: run the process of callGoProxy instead
	dir             string
	turn            time.Duration
	rounds, keys    int
	clients, sizes  []int
	quorateArgs     []string
	bare            bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	s, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	switch {
	case err != nil:
	case s.proxy != "":
		err = serveProxy(ctx, s.proxy)
	default:
		err = run(ctx, s, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare: "+err.Error())
		stop()
		os.Exit(1) //nolint:gocritic // stop has been called
	}
}

func parse(args []string, out io.Writer) (*settings, error) {
	s := &settings{}
	f := flag.NewFlagSet("compare", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&s.quorate, "quorate", "quorate", "the quorate program")
	f.StringVar(&s.beside, "beside", "", "another quorate program to compare with, for example an earlier version; "+
		"empty = none")
	f.StringVar(&s.etcd, "etcd", "etcd", "the etcd program; Debian's package is etcd-server")
	f.StringVar(&s.redis, "redis", "redis-server", "the Redis program; Debian's package is redis-server")
	f.StringVar(&s.etcdTool, "etcd-tool", "etcd-benchmark", "etcd's own load program, tools/benchmark of its sources")
	f.StringVar(&s.daprd, "daprd", "daprd", "the sidecar of Dapr")
	f.StringVar(&s.nginx, "nginx", "nginx", "the nginx program; Debian's package is nginx-light")
	f.StringVar(&s.proxy, "proxy", "", "forward requests as a reverse proxy: own address,address of the application")
	names := f.String("tables", "cluster,lock,node,call,hops", "tables, separated by commas: "+
		"cluster, three nodes; lock, locks of three nodes; node, one node; "+
		"call, an application beside the node; hops, beside another node")
	f.StringVar(&s.dir, "dir", "", "directory on the disk to measure; empty uses a temporary one")
	f.DurationVar(&s.turn, "turn", 2*time.Second, "duration of one turn")
	f.IntVar(&s.rounds, "rounds", 3, "turns per store and table cell")
	f.IntVar(&s.keys, "keys", 1000, "number of keys")
	client := f.String("client", "own", "own: the usual Go client of each store; http: one minimal HTTP/1.1 client "+
		"for Quorate and for etcd's JSON gateway")
	clients := f.String("clients", "1,64,512", "numbers of clients, separated by commas")
	sizes := f.String("sizes", "256", "sizes of values in bytes, separated by commas")
	quorateArgs := f.String("quorate-args", "", "additional arguments of quorate run, separated by spaces")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	var err error
	if s.clients, err = numbers("clients", *clients); err != nil {
		return nil, err
	}
	if s.sizes, err = numbers("sizes", *sizes); err != nil {
		return nil, err
	}
	if *client != "own" && *client != "http" {
		return nil, fmt.Errorf("-client: %q is refused: give own or http", *client)
	}
	s.bare = *client == "http"
	for name := range strings.SplitSeq(*names, ",") {
		if !slices.ContainsFunc(tables(), func(t table) bool { return t.name == name }) {
			return nil, fmt.Errorf("-tables: %q is not a table: give cluster, lock, node, call or hops", name)
		}
		s.tables = append(s.tables, name)
	}
	if s.turn <= 0 || s.rounds < 1 || s.keys < 1 {
		return nil, errors.New("-turn, -rounds and -keys must be positive")
	}
	s.quorateArgs = strings.Fields(*quorateArgs)
	return s, nil
}

func numbers(name, text string) ([]int, error) {
	var out []int
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("-%s: %q is not a positive number", name, field)
		}
		out = append(out, n)
	}
	return out, nil
}

// opener starts a system in the directory dir. It returns nil if the settings do not select the system, and a
// *missingError if the program of the system is not found.
type opener func(ctx context.Context, s *settings, dir string) (store, error)

// tables are the names of the tables, as -tables takes them.
const (
	clusterTable = "cluster"
	lockTable    = "lock"
	nodeTable    = "node"
	callTable    = "call"
	hopsTable    = "hops"
)

// table is one comparison. The first system is Quorate; the others are compared with it.
type table struct {
	name, title string
	operations  []operation
	systems     []opener
	own         bool // always with the usual client of each system: etcd's mutex is a part of its Go client
}

func tables() []table {
	return []table{
		{clusterTable, "State, three nodes", []operation{strongSave, strongRead, eventualRead},
			[]opener{openQuorate, openBeside, openEtcd, openEtcdTool, openRedis}, false},
		{lockTable, "Locks, three nodes", []operation{lockUnlock},
			[]opener{openQuorate, openBeside, openEtcd, openRedis}, true},
		{nodeTable, "State, one node", []operation{strongSave, eventualRead}, []opener{openOne, openDaprd}, false},
		{callTable, "Calls of an application beside the node", []operation{call},
			[]opener{callQuorate, callNginx, callGoProxy, callDaprd}, false},
		{hopsTable, "Calls of an application beside another node", []operation{call},
			[]opener{callQuorateElsewhere, callNginxTwice}, false},
	}
}

// run measures and prints the tables that the settings name.
func run(ctx context.Context, s *settings, out io.Writer) error {
	app, err := startApplication()
	if err != nil {
		return err
	}
	defer app.end()
	s.app = app
	for _, t := range tables() {
		if slices.Contains(s.tables, t.name) {
			if err := t.measure(ctx, s, out); err != nil {
				return fmt.Errorf("table %s: %w", t.name, err)
			}
		}
	}
	return nil
}

// measure starts the systems of a table, measures each of them with every value size, and prints the results.
func (t table) measure(ctx context.Context, s *settings, out io.Writer) (err error) {
	dir, err := os.MkdirTemp(s.dir, "compare-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if t.own {
		own := *s
		own.bare = false
		s = &own
	}
	fmt.Fprintf(out, "## %s\n\n", t.title)
	var stores []store
	defer func() {
		for _, st := range stores {
			st.end()
		}
	}()
	for _, open := range t.systems {
		st, err := open(ctx, s, dir)
		var missing *missingError
		if errors.As(err, &missing) {
			fmt.Fprintln(out, "left out:", missing)
			continue
		}
		if err != nil {
			return err
		}
		if st == nil {
			continue
		}
		stores = append(stores, st)
		fmt.Fprintf(out, "%s: %s\n", st.name(), st.about())
	}
	if len(stores) == 0 || stores[0].name() != "quorate" {
		return errors.New("the quorate program is missing: build it with make build, or give its path with -quorate")
	}
	for _, size := range s.sizes {
		if err := t.print(ctx, s, out, stores, size); err != nil {
			return err
		}
	}
	return nil
}

// print measures and prints everything for one size of values.
func (t table) print(ctx context.Context, s *settings, out io.Writer, stores []store, size int) error {
	fmt.Fprintf(out, "\n%d bytes, %d keys, %d turns of %s\n\n", size, s.keys, s.rounds, s.turn)
	fmt.Fprint(out, "| | clients |")
	for _, st := range stores {
		fmt.Fprintf(out, " %s: per second, p50, p99, CPU |", st.name())
	}
	for _, st := range stores[1:] {
		fmt.Fprintf(out, " beside %s: rate, CPU |", st.name())
	}
	fmt.Fprintln(out, "\n| --- | --- |"+strings.Repeat(" --- |", 2*len(stores)-1))
	value := strings.Repeat("v", size)
	for _, st := range stores {
		if err := fill(ctx, st, s.keys, value); err != nil {
			return fmt.Errorf("%s: %w", st.name(), err)
		}
	}
	for _, op := range t.operations {
		for _, clients := range s.clients {
			cells := make([]figures, len(stores))
			for range s.rounds {
				for i, st := range stores {
					if err := load(ctx, &cells[i], st, op, clients, s.keys, value, s.turn); err != nil {
						return fmt.Errorf("%s, %s with %d clients: %w", st.name(), op, clients, err)
					}
				}
			}
			fmt.Fprintf(out, "| %s | %d |", op, clients)
			for i := range stores {
				fmt.Fprintf(out, " %s |", &cells[i])
			}
			for i := range stores[1:] {
				goal := goalOf(s, t.name, stores[i+1].name(), op, clients)
				fmt.Fprintf(out, " %s |", cells[0].beside(&cells[i+1])+missed(cells[0].rate()/cells[i+1].rate(), goal))
			}
			fmt.Fprintln(out)
		}
	}
	fmt.Fprintln(out)
	return nil
}
