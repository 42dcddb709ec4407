package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/command"
)

// healthTime is the timeout for a response of the node. It is short, because health probes repeat every few seconds.
const healthTime = 3 * time.Second

// healthReport is the JSON output of the health command.
type healthReport struct {
	Healthy bool            `json:"healthy"` // always true: anything else is an error of the command
	Address string          `json:"address"`
	Path    string          `json:"path"`             // path of the request
	Detail  json.RawMessage `json:"detail,omitempty"` // body of the response, if there is one
}

// healthCommand returns the command that checks the health of a node. It is the health check of container images, which
// have no shell and no curl.
func (m *Main) healthCommand() *cobra.Command {
	api, out := command.APIFlags{Shell: m.Shell}, command.Output{}
	var live, ready, placed, outbound bool
	c := &cobra.Command{
		Use:   "health [flags]",
		Short: "Check whether a node has started, or is ready",
		Long: "Check through the HTTP API of a node whether its start is complete (/v1.0/healthz). The exit\n" +
			"code is 0 if it is; otherwise it is 1 and the reason is printed. No token is needed. Container\n" +
			"images, which have no shell, use it as health check. It reads the same settings as run.",
		Example: "  quorate health\n  quorate health --ready        # reads and writes work\n" +
			"  quorate health --placed       # and this server is a voter, if it should be\n" +
			"  quorate health --outbound     # all except the application has started",
		Args: cobra.NoArgs,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		path := "/v1.0/healthz"
		switch {
		case live:
			path = "/livez"
		case ready:
			path = "/readyz"
		case placed:
			path = "/readyz/placed"
		case outbound:
			path = "/v1.0/healthz/outbound"
		}
		return api.With(c, func(client *command.APIClient) error {
			client.Token = "" // the health endpoints need none, and a probe must not send it
			r, err := client.Do(c.Context(), http.MethodGet, path, nil, nil, nil)
			if err != nil {
				return err
			}
			report := healthReport{Healthy: true, Address: client.Base, Path: path}
			if json.Valid(r.Body) {
				report.Detail = r.Body
			}
			if out.JSON() {
				return command.WriteJSON(m.Stdout, report)
			}
			_, err = fmt.Fprintf(m.Stdout, "%s: %s is fine\n", client.Base, path)
			return err
		})
	}
	api.Bind(c)
	api.Timeout = healthTime
	c.Flags().Lookup("timeout").DefValue = healthTime.String()
	out.Bind(c)
	c.ValidArgsFunction = cobra.NoFileCompletions
	c.Flags().BoolVar(&live, "live", false, "check only whether the process answers")
	c.Flags().BoolVar(&ready, "ready", false, "check whether reads and writes work, for every store and group")
	c.Flags().BoolVar(&placed, "placed", false,
		"check --ready and whether a server that should vote is a voter; then a rolling update may stop the next "+
			"server")
	c.Flags().BoolVar(&outbound, "outbound", false, "check whether everything except the application has started")
	c.MarkFlagsMutuallyExclusive("live", "ready", "placed", "outbound")
	return c
}
