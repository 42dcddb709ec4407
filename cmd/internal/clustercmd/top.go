package clustercmd

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
)

// topRows is the maximum number of rows in two tables of quorate top: the operations of state stores, and the calls
// between applications.
const topRows = 10

func (m *commands) topCommand() *cobra.Command {
	set, interval, once := settings.New(), time.Duration(0), false
	c := &cobra.Command{
		Use:   "top [flags]",
		Short: "Show live what the nodes of the cluster do",
		Long: "Show live what the nodes of the cluster do: rates, durations, memory and disk of each node, the\n" +
			"groups, the busiest state stores, and the busiest calls between applications. Arrows scroll, and q\n" +
			"ends it. It uses the node of the data directory, by default this user's, which asks the others.",
		Example: "  quorate top\n  quorate top --once --interval 10s",
		Args:    cobra.NoArgs,
	}
	set.BindOnly(c.Flags(), "data-dir", "cluster", "config-file")
	c.Flags().DurationVar(&interval, "interval", time.Second, "time between two looks at the nodes")
	c.Flags().BoolVar(&once, "once", false, "print the rates of one interval, and end; for scripts and files")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if interval < 200*time.Millisecond || interval > time.Hour {
			return command.Usagef("--interval %s is refused (give 200ms to 1h)", interval)
		}
		if !once && !command.IsTerminal(m.Stdout) {
			return command.Usagef("standard output is no terminal (use --once)")
		}
		dir, err := m.AdminDir(c, set)
		if err != nil {
			return err
		}
		node := command.AdminClient{DataDir: dir}
		t := &top{ask: func(ctx context.Context) look { return lookAt(ctx, node) }, interval: interval}
		if once {
			return t.once(c.Context(), m.Stdout)
		}
		return t.live(c.Context())
	}
	return c
}

// top looks at all nodes of a cluster at intervals.
type top struct {
	ask      func(ctx context.Context) look
	interval time.Duration
}

// look has the reports of all nodes at one time.
type look struct {
	at      time.Time
	cluster schema.ClusterStatus
	views   map[string]*schema.NodeView // views of the nodes that have answered, by node id
	err     error                       // why there is no look; the other fields are then empty
}

// lookAt gets the reports of all live nodes. It sends all requests to one node, which forwards them.
func lookAt(ctx context.Context, node command.AdminClient) look {
	ctx, cancel := context.WithTimeout(ctx, command.AdminTime)
	defer cancel()
	l := look{views: map[string]*schema.NodeView{}}
	if l.err = node.Get(ctx, adminapi.ClusterPath, &l.cluster); l.err != nil {
		return l
	}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for i := range l.cluster.Nodes {
		n := &l.cluster.Nodes[i]
		if n.Status == nil {
			continue
		}
		asking.Go(func() {
			at, v := node, schema.NodeView{}
			if at.Node = n.Member.Node; n.Member.Node == l.cluster.Node {
				at.Node = ""
			}
			if at.Get(ctx, adminapi.ViewPath, &v) == nil { // the rates of a node that does not answer are missing
				mu.Lock()
				defer mu.Unlock()
				l.views[n.Member.Node] = &v
			}
		})
	}
	asking.Wait()
	l.at = time.Now()
	return l
}

// once prints the rates between two looks.
func (t *top) once(ctx context.Context, w io.Writer) error {
	first := t.ask(ctx)
	if first.err != nil {
		return first.err
	}
	select {
	case <-time.After(t.interval):
	case <-ctx.Done():
		return fault.New(fault.Timeout, "cli.top", "it was interrupted")
	}
	second := t.ask(ctx)
	if second.err != nil {
		return second.err
	}
	return second.write(w, first, 0)
}

// write prints a look at the cluster, with rates since an older look. If width is not 0, the table of nodes is split by
// columns, so that its lines have at most width characters where possible. Other tables are not split.
func (l *look) write(w io.Writer, older look, width int) error {
	s, failed := &l.cluster, 0
	for i := range s.Nodes {
		if s.Nodes[i].Status == nil {
			failed++
		}
	}
	fmt.Fprintf(w, "%s, %s", l.at.Format(time.TimeOnly), command.Count(len(s.Nodes), "node"))
	if failed > 0 {
		fmt.Fprintf(w, ", %d of them did not answer", failed)
	}
	if !older.at.IsZero() {
		fmt.Fprintf(w, ", rates of %s", l.at.Sub(older.at).Round(100*time.Millisecond))
	}
	fmt.Fprint(w, "\n\n")
	rows := [][]string{{"NODE", "LEADS", "REQUESTS/S", "ERRORS/S", "P50", "P99", "DISK P99", "ENTRIES/S", "LAG", "CPU",
		"MEMORY", "DISK FREE"}}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		v, r := l.views[n.Member.Node], schema.RatesBetween(older.views[n.Member.Node], l.views[n.Member.Node])
		name := nodeName(n.Member)
		if n.Status == nil {
			name += " (" + n.Member.State + ")"
		}
		row := []string{name, leadsText(*s, n.Member), rate(r.Known, r.Requests), rate(r.Known, r.Errors),
			duration(r.P50), duration(r.P99), duration(r.SyncP99), rate(r.Known, r.Entries), lagText(n.Lag)}
		if v == nil {
			rows = append(rows, append(row, "-", "-", "-"))
			continue
		}
		cpu := "-"
		if r.Known {
			cpu = fmt.Sprintf("%.0f %%", 100*r.CPU)
		}
		rows = append(rows, append(row, cpu, command.BytesText(int64(v.Figures.Memory)), diskText(*n)))
	}
	for i, t := range folded(rows, width) {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := command.Table(w, t); err != nil {
			return err
		}
	}
	if len(s.Groups) > 0 {
		fmt.Fprintln(w)
		if err := printClusterGroups(w, s.Groups); err != nil {
			return err
		}
	}
	stores, calls := l.busiest(older)
	for _, t := range [][][]string{stores, calls} {
		if len(t) > 1 {
			fmt.Fprintln(w)
			if err := command.Table(w, t); err != nil {
				return err
			}
		}
	}
	return nil
}

// folded splits the columns of a wide table into several tables that fit the given width. It returns as few tables as
// possible, of about the same width. Each table begins with the first column. If width is 0, folded returns one table.
func folded(rows [][]string, width int) [][][]string {
	out := split(rows, width)
	for len(out) > 1 && width > 1 {
		width--
		narrower := split(rows, width)
		if len(narrower) > len(out) {
			break
		}
		out = narrower
	}
	return out
}

// split divides a table that is too wide into several tables. Each of them begins with the first column. If width is 0,
// there is no limit.
func split(rows [][]string, width int) (out [][][]string) {
	widest := func(column int) (n int) {
		for _, row := range rows {
			n = max(n, utf8.RuneCountInString(row[column]))
		}
		return n
	}
	const gap = 2 // between two columns, see command.Table
	used := 0
	for column := 1; column < len(rows[0]); column++ {
		if used += gap + widest(column); out == nil || width > 0 && used > width {
			used = widest(0) + gap + widest(column)
			var next [][]string
			for _, row := range rows {
				next = append(next, row[:1:1])
			}
			out = append(out, next)
		}
		last := out[len(out)-1]
		for i, row := range rows {
			last[i] = append(last[i], row[column])
		}
	}
	return out
}

// busy is a table row with its rates. Rows are sorted by the field all.
type busy struct {
	row       []string
	all, errs float64
}

// busiest returns two tables for all nodes together: the busiest operations of state stores, and the busiest calls
// between applications.
func (l *look) busiest(older look) (stores, calls [][]string) {
	operations, edges := map[string]*busy{}, map[string]*busy{}
	add := func(to map[string]*busy, all, errs float64, row ...string) {
		key := strings.Join(row, "\x00")
		if to[key] == nil {
			to[key] = &busy{row: row}
		}
		to[key].all, to[key].errs = to[key].all+all, to[key].errs+errs
	}
	for id, v := range l.views {
		was := older.views[id]
		if !schema.RatesBetween(was, v).Known {
			continue
		}
		seconds := v.At.Sub(was.At).Seconds()
		for _, f := range [...]struct {
			sign float64
			*schema.Figures
		}{{-1 / seconds, &was.Figures}, {1 / seconds, &v.Figures}} {
			for _, c := range f.Stores {
				add(operations, f.sign*c.Value, 0, command.Printable(c.Name), c.Part)
			}
			for _, c := range f.Calls {
				add(edges, f.sign*float64(c.Count), f.sign*float64(c.Errors), command.Dash(command.Printable(c.From)),
					command.Printable(c.To))
			}
		}
	}
	return table(operations, "STORE", "OPERATION"), table(edges, "CALLER", "APPLICATION")
}

// table returns a header and the rows with the highest rates, at most topRows.
func table(rows map[string]*busy, names ...string) [][]string {
	out := [][]string{append(names, "PER SECOND", "FAILED/S")}
	list := make([]*busy, 0, len(rows))
	for _, b := range rows {
		if b.all > 0 {
			list = append(list, b)
		}
	}
	slices.SortFunc(list, func(a, b *busy) int {
		return cmp.Or(cmp.Compare(b.all, a.all), slices.Compare(a.row, b.row))
	})
	for _, b := range list[:min(len(list), topRows)] {
		out = append(out, append(b.row, rate(true, b.all), rate(true, b.errs)))
	}
	return out
}

// rate formats a number per second. If known is false, it returns "-".
func rate(known bool, v float64) string {
	switch {
	case !known:
		return "-"
	case v > 0 && v < 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", max(v, 0))
}

// duration formats a duration in seconds as milliseconds. NaN means unknown.
func duration(s float64) string {
	if math.IsNaN(s) {
		return "-"
	}
	return fmt.Sprintf("%.1f ms", 1000*s)
}
