package console

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/quorate/quorate/api/admin/schema"
)

// An application without a port is never probed. It is not shown as healthy.
func TestAppTable_NamesStates(t *testing.T) {
	t.Parallel()
	list := applications([]schema.AppInstance{
		{App: "all", State: "healthy"}, {App: "all", State: "healthy"},
		{App: "called", State: "uncalled"}, {App: "called", State: "healthy"},
		{App: "down", State: "unhealthy"}, {App: "down", State: "demoted"},
		{App: "mixed", State: "demoted"}, {App: "mixed", State: "healthy"},
		{App: "silent", State: "uncalled"}, {App: "silent", State: "uncalled"},
	}, nil)
	want := []struct{ name, level, word string }{
		{"all", levelOK, "healthy"}, {"called", levelOK, "healthy"}, {"down", levelFail, "unhealthy"},
		{"mixed", levelWarn, "some unhealthy"}, {"silent", "", "not called"},
	}
	if len(list) != len(want) {
		t.Fatalf("%d applications", len(list))
	}
	for i, w := range want {
		table := string(appTable(list[i : i+1]))
		if list[i].name != w.name || list[i].level != w.level || !strings.Contains(table, ">"+w.word+"<") {
			t.Errorf("%s is %q: %s", list[i].name, list[i].level, table)
		}
	}
}

func TestGraph_LabelsCoverNeitherLabelsNorApplications(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 12; n++ {
		var apps []application
		for i := range n {
			apps = append(apps, application{name: "application-" + strconv.Itoa(i)})
		}
		var edges []call
		for i := range apps {
			for k := range apps {
				edges = append(edges, call{edge: edge{apps[i].name, apps[k].name}, callRate: callRate{12.5, 3.5}})
			}
		}
		at, _ := place(apps)
		var taken []box
		for _, a := range apps {
			b := at[a.name]
			taken = append(taken, box{b.x, b.y, b.wide})
		}
		labels := 0
		for i := range edges {
			_, _, places := arrow(&edges[i], at[edges[i].From], at[edges[i].To])
			free, ok := freePlace(places, taken)
			if !ok {
				continue
			}
			for _, b := range taken {
				if math.Abs(free.x-b.x) < (free.wide+b.wide)/2 && math.Abs(free.y-b.y) < 18 {
					t.Errorf("%d applications: the label of %v at %v covers %v", n, edges[i].edge, free, b)
				}
			}
			taken, labels = append(taken, free), labels+1
		}
		if labels < n {
			t.Errorf("%d applications: only %d labels", n, labels)
		}
	}
}
