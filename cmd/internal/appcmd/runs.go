package appcmd

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/hostshare"
	"github.com/quorate/quorate/internal/suggest"
	"github.com/quorate/quorate/node"
)

const (
	runsDir    = "runs"    // below the user's directory for sockets
	logsDir    = "logs"    // below the directory of the user's state
	logSuffix  = ".log"    // suffix of the file with the output of an application
	oldSuffix  = ".1"      // further suffix of the file with the older part of an output
	maxLog     = 8 << 20   // bytes of each part
	maxCommand = 4 << 10   // bytes of the shown command
	opRuns     = "cli.run" // operation of errors
)

// Describe returns the record of a running node, with which the commands of this package find the node. The record
// contains run. Describe adds the API addresses, the application port, the command and the data directory to run.
func Describe(c node.Config, a node.Addresses, run hostshare.Run) hostshare.Note {
	run.AppPort, run.DataDir = c.App.Port, a.DataDir
	if len(a.API) > 0 {
		run.HTTP = a.API[0]
	}
	if len(a.GRPC) > 0 {
		run.GRPC = a.GRPC[0]
	}
	run.Command = cut(strings.Join(c.App.Command, " "))
	return hostshare.Note{Node: a.Node, Role: string(c.Cluster.Role), Admin: a.Admin,
		Apps: []string{c.App.ID}, PID: os.Getpid(), Run: &run}
}

func cut(text string) string {
	if len(text) > maxCommand {
		return strings.ToValidUTF8(text[:maxCommand], "") + "…"
	}
	return text
}

// Announce writes the record of a running process to a file below runtimeDir, the directory for the sockets of this
// user. The record is valid until the result is closed or the process ends.
func Announce(runtimeDir string, n hostshare.Note) (*hostshare.Presence, error) {
	if err := hostshare.Private(runtimeDir); err != nil {
		return nil, err
	}
	return hostshare.Announce(filepath.Join(runtimeDir, runsDir), n)
}

// list returns the records of the running processes of this user, sorted by application.
func list(runtimeDir string) ([]hostshare.Note, error) {
	notes, err := hostshare.List(filepath.Join(runtimeDir, runsDir))
	if err != nil {
		return nil, err
	}
	notes = slices.DeleteFunc(notes, func(n hostshare.Note) bool { return n.Run == nil })
	slices.SortStableFunc(notes, func(a, b hostshare.Note) int { return strings.Compare(name(a), name(b)) })
	return notes, nil
}

// name returns the application of a record. A process that runs a run file has a record without an application. For
// such a record, name returns the path of the run file.
func name(n hostshare.Note) string {
	if len(n.Apps) > 0 {
		return n.Apps[0]
	}
	return n.Run.File
}

// find returns the records of an application. If the application does not run, it returns fault.NotFound with a
// suggestion.
func find(notes []hostshare.Note, app string) ([]hostshare.Note, error) {
	var found []hostshare.Note
	var apps []string
	for _, n := range notes {
		if slices.Contains(n.Apps, app) {
			found = append(found, n)
		}
		apps = append(apps, n.Apps...)
	}
	if len(found) > 0 {
		return found, nil
	}
	return nil, &fault.Error{Code: fault.NotFound, Op: opRuns, Msg: fmt.Sprintf("no quorate run of this user has the "+
		"application %s", command.Printable(app)), Hint: hintFor(app, apps)}
}

// DataDir returns the data directory of the node of an application that this user runs on this machine. If the
// application does not run, it returns fault.NotFound with a suggestion.
func DataDir(runtimeDir, app string) (string, error) {
	notes, err := list(runtimeDir)
	if err != nil {
		return "", err
	}
	found, err := find(notes, app)
	if err != nil {
		return "", err
	}
	return found[0].Run.DataDir, nil
}

// hintFor returns the hint of an error about an unknown application. It suggests the known application with a similar
// name. If there is none, it lists the known applications, or only counts them if there are more than 20.
func hintFor(app string, apps []string) string {
	slices.Sort(apps)
	apps = slices.Compact(apps)
	near := suggest.For(app, apps)
	const many = 20
	switch {
	case near != "":
		return "did you mean " + command.Printable(near) + "?"
	case len(apps) == 0:
		return "none runs on this machine; quorate apps lists the applications of the cluster"
	case len(apps) > many:
		return fmt.Sprintf("%d run on this machine: quorate list", len(apps))
	}
	for i := range apps {
		apps[i] = command.Printable(apps[i])
	}
	return "on this machine run: " + strings.Join(apps, ", ") + "; quorate apps lists those of the cluster"
}

// logPath returns the path of the output of an application. It escapes the application id, which may contain
// characters that are not allowed in file names.
func logPath(stateDir, app string, pid int) string {
	return filepath.Join(stateDir, "quorate", logsDir, logName(app)+strconv.Itoa(pid)+logSuffix)
}

// logName returns the first part of the names of the output files of an application.
func logName(app string) string {
	const most = 200 // bytes; names of files are limited to 255
	escaped := strings.ReplaceAll(url.QueryEscape(app), ".", "%2E")
	return escaped[:min(most, len(escaped))] + "."
}
