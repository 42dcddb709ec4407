// Command compare measures Quorate and other systems under the same load, on one machine. In each of these tables, it
// compares Quorate with the systems after the colon:
//
//	cluster      state of three nodes: etcd, and one Redis that syncs every write to disk
//	failover     the time without successful writes after the leader was killed: etcd
//	lock         locks of three nodes: the mutex of etcd's package concurrency, and SET NX in Redis
//	node         state of one node: daprd with Redis, and a bare HTTP handler in Go
//	call         calls to an application beside the node: nginx, a reverse proxy in Go, daprd
//	hops         calls to an application beside another node: two nginx servers
//	jobs, jobs3  actors, reminders and jobs of one node and of three nodes: daprd
//	pubsub       topics of one node: daprd with Redis Streams, and one server of NATS JetStream
//	pubsub3      topics of three nodes: three servers of NATS JetStream
//	workflow     workflows of one node: daprd with its placement server, its scheduler and Redis
//
// The tables have the ratios of the request rates and, on Linux, of the CPU time per request. A ratio below its goal is
// marked.
//
// The clients are spread evenly over the nodes of a cluster:
//
//   - Quorate, daprd and etcd are called with the same minimal HTTP client.
//   - In the table lock, and with -client own in the tables cluster and node, they are called with the usual Go clients
//     instead: net/http for Quorate and daprd, and go.etcd.io/etcd/client/v3 for etcd.
//   - The table workflow uses Dapr's SDK for Go.
//   - If etcd's own load program is given, etcd is also measured with that program.
//   - Redis is called through go-redis.
//
// The clients run on the same machine, so their CPU time affects the result. The systems take turns: while one is
// measured, the others are idle.
//
// The command ends the processes that it has started, and removes their directories. If the program of a system is not
// found, the output says so and omits the system.
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

// settings are the values of the flags.
type settings struct {
	quorate, beside string
	etcd, redis     string
	etcdTool        string
	daprd, nginx    string
	placement       string
	scheduler       string
	tables          []string
	app             *application
	proxy           string // not empty: run the process of callGoProxy instead
	handler         string // not empty: run the process of openHandler instead
	nats            string // not empty: run a process of openJetStream instead
	dir             string
	turn            time.Duration
	rounds, keys    int
	kills           int
	clients, sizes  []int
	instances       []int
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
	case s.handler != "":
		err = serveHandler(ctx, s.handler)
	case s.nats != "":
		err = serveNATS(ctx, s.nats)
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
	f.StringVar(&s.placement, "placement", "placement", "the placement server of Dapr, which hosts of actors need")
	f.StringVar(&s.scheduler, "scheduler", "scheduler", "the scheduler of Dapr, for jobs and reminders")
	f.StringVar(&s.nginx, "nginx", "nginx", "the nginx program; Debian's package is nginx-light")
	f.StringVar(&s.proxy, "proxy", "", "forward requests as a reverse proxy: own address,address of the application")
	f.StringVar(&s.handler, "handler", "", "answer requests with one value, at this address")
	f.StringVar(&s.nats, "nats", "", "run a NATS server with this configuration file")
	all, about := tableNames()
	names := f.String("tables", strings.Join(all, ","), "tables, separated by commas:\n"+about)
	f.StringVar(&s.dir, "dir", "", "directory on the disk to measure; empty uses a temporary one")
	f.DurationVar(&s.turn, "turn", 2*time.Second, "duration of one turn")
	f.IntVar(&s.rounds, "rounds", 3, "turns per store and table cell")
	f.IntVar(&s.kills, "kills", 9, "kills of the leader for each system of table failover")
	f.IntVar(&s.keys, "keys", 1000, "number of keys")
	client := f.String("client", "http", "http: one minimal HTTP/1.1 client for Quorate, daprd and etcd's JSON "+
		"gateway; own: the usual Go client of each")
	clients := f.String("clients", "1,64,512", "numbers of clients, separated by commas")
	instances := f.String("instances", "1,30,350", "numbers of workflows that run at a time, separated by commas")
	sizes := f.String("sizes", "256", "sizes of values in bytes, separated by commas")
	quorateArgs := f.String("quorate-args", "", "additional arguments of quorate run, separated by spaces")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	var err error
	if s.clients, err = numbers("clients", *clients); err != nil {
		return nil, err
	}
	if s.instances, err = numbers("instances", *instances); err != nil {
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
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("-tables: %q is not a table: give some of %s", name, strings.Join(all, ", "))
		}
		s.tables = append(s.tables, name)
	}
	if s.turn <= 0 || s.rounds < 1 || s.keys < 1 || s.kills < 1 {
		return nil, errors.New("-turn, -rounds, -keys and -kills must be positive")
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

// opener starts a system whose files are in the directory dir. If the flags do not select the system, it returns nil
// and no error. If the program of the system is not found, the error is a *missingError.
type opener func(ctx context.Context, s *settings, dir string) (store, error)

// The names of the tables, for the flag -tables.
const (
	clusterTable  = "cluster"
	failoverTable = "failover"
	lockTable     = "lock"
	nodeTable     = "node"
	callTable     = "call"
	hopsTable     = "hops"
	jobsTable     = "jobs"
	jobs3Table    = "jobs3"
	pubsubTable   = "pubsub"
	pubsub3Table  = "pubsub3"
	workflowTable = "workflow"
)

// table is one comparison. It compares the first system, which is Quorate, with each of the others.
type table struct {
	name, title string
	operations  []operation
	systems     []opener
	own         bool // always use the usual client of each system, as if -client were own
	// print measures and prints the table. It is nil for a table with one row per operation and number of clients.
	print func(ctx context.Context, s *settings, out io.Writer, stores []store) error
}

func tables() []table {
	onDue := []operation{appCall, actorCall, createJob, createReminder, fireJobs, fireReminders, paceJobs,
		paceReminders}
	onTopics := []operation{publish, publishDeliver}
	return []table{
		{clusterTable, "State, three nodes", []operation{strongSave, strongRead, eventualRead},
			[]opener{openQuorate("quorate", 3), openQuorate("beside", 3), openEtcd, openEtcdTool, openRedis}, false,
			nil},
		{failoverTable, "Leader killed, three nodes", nil, []opener{openQuorate("quorate", 3),
			openQuorate("beside", 3), openEtcd}, false, printFailover},
		{lockTable, "Locks, three nodes", []operation{lockUnlock},
			[]opener{openQuorate("quorate", 3), openQuorate("beside", 3), openEtcd, openRedis}, true, nil},
		{nodeTable, "State, one node", []operation{strongSave, eventualRead},
			[]opener{openQuorate("quorate", 1), openQuorate("beside", 1), openDaprd, openHandler}, false, nil},
		{callTable, "Calls of an application beside the node", []operation{call},
			[]opener{callQuorate("quorate"), callQuorate("beside"), callNginx, callGoProxy, callDaprd}, false, nil},
		{hopsTable, "Calls of an application beside another node", []operation{call},
			[]opener{callQuorateElsewhere("quorate"), callQuorateElsewhere("beside"), callNginxTwice}, false, nil},
		{jobsTable, "Actors, reminders and jobs, one node", onDue, []opener{dueQuorate("quorate", 1),
			dueQuorate("beside", 1), dueDaprd(1)}, false, nil},
		{jobs3Table, "Actors, reminders and jobs, three nodes", onDue, []opener{dueQuorate("quorate", 3),
			dueQuorate("beside", 3), dueDaprd(3)}, false, nil},
		{pubsubTable, "Topics, one node", onTopics, []opener{topicsQuorate("quorate", 1), topicsQuorate("beside", 1),
			topicsDaprd, openJetStream("js-always", 1, true), openJetStream("js", 1, false)}, false, nil},
		{pubsub3Table, "Topics, three nodes", onTopics, []opener{topicsQuorate("quorate", 3),
			topicsQuorate("beside", 3), openJetStream("js-always", 3, true), openJetStream("js", 3, false)}, false,
			nil},
		{workflowTable, "Workflows, one node", []operation{runChain, runFanOut, runTimer},
			[]opener{workflowsQuorate("quorate"), workflowsQuorate("beside"), workflowsDaprd}, false, nil},
	}
}

// tableNames returns the names of all tables, and a text with one line for each table: its name and its title.
func tableNames() (names []string, about string) {
	for _, t := range tables() {
		names = append(names, t.name)
		about += fmt.Sprintf("%-8s  %s\n", t.name, t.title)
	}
	return names, strings.TrimSuffix(about, "\n")
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
		if q, ok := st.(*quorate); ok && t.name == nodeTable {
			if err := q.printSizes(out); err != nil {
				return err
			}
		}
	}
	if len(stores) == 0 || stores[0].name() != "quorate" {
		return errors.New("the quorate program is missing: build it with make build, or give its path with -quorate")
	}
	if t.print != nil {
		return t.print(ctx, s, out, stores)
	}
	for _, size := range s.sizes {
		if err := t.printCells(ctx, s, out, stores, size); err != nil {
			return err
		}
	}
	return nil
}

// printCells measures and prints the table for one size of values.
func (t table) printCells(ctx context.Context, s *settings, out io.Writer, stores []store, size int) error {
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
	if slices.ContainsFunc(t.operations, operation.reads) {
		for _, st := range stores {
			if err := fill(ctx, st, s.keys, value); err != nil {
				return fmt.Errorf("%s: %w", st.name(), err)
			}
		}
	}
	for _, op := range t.operations {
		for _, clients := range op.clients(s) {
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
				fmt.Fprintf(out, " %s", &cells[i])
				if i == 0 {
					fmt.Fprint(out, exceeded(cells[i].cost(), costGoals[t.name][op][clients]),
						exceeded(cells[i].quantile(0.5), latencyGoals[t.name][op][clients]))
				}
				fmt.Fprint(out, " |")
			}
			for i := range stores[1:] {
				goal := goalOf(s, t.name, stores[i+1].name(), op, clients)
				fmt.Fprintf(out, " %s |", cells[0].beside(&cells[i+1])+
					missed(cells[0].rate()/cells[i+1].rate(), goal)+
					missedCost(&cells[0], &cells[i+1], cpuGoals[t.name+"/"+stores[i+1].name()][op][clients]))
			}
			fmt.Fprintln(out)
		}
	}
	fmt.Fprintln(out)
	return nil
}
