package node

import (
	"cmp"
	"context"
	"errors"

	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/node/calls"
	"github.com/quorate/quorate/node/components"
	"github.com/quorate/quorate/node/subscriptions"
	"github.com/quorate/quorate/raftfsm/backup"
)

// Check checks the component files, the credential files and the backup key file of c, without starting anything. The
// error joins all problems that would prevent the start of the node or of its backups. All other problems are warnings.
// The function env looks up environment variables.
func Check(_ context.Context, c Config, env func(name string) (string, bool)) (warnings []string, err error) {
	c = c.WithDefaults()
	plan, err := components.Read(c.sources(Deps{Env: env}))
	errs := loader.Each(err)
	if plan != nil {
		for _, w := range plan.Warnings {
			warnings = append(warnings, w.String())
		}
		for _, w := range plan.Skipped() {
			warnings = append(warnings, w.String())
		}
		r, wrong := calls.ReadRules(plan, c.reading())
		for _, w := range r.Unused {
			warnings = append(warnings, w.String())
		}
		for _, err := range r.Rejected {
			warnings = append(warnings, err.Error())
		}
		errs = append(errs, loader.Each(wrong)...)
		errs = append(errs, subscriptions.Check(plan.Subscriptions()))
	}
	keys, wrong := c.checkKeys()
	return append(warnings, keys...), errors.Join(append(errs, wrong...)...)
}

// checkKeys checks the cluster token file, the certificates for connections between nodes, and the backup key file. The
// errors are the problems that would prevent the start of the node or of its backups. All other problems are warnings.
// API tokens are checked earlier, when the settings are read.
func (c Config) checkKeys() (warnings []string, errs []error) {
	var settings problems
	if c.Security.validate(&settings); len(settings) == 0 && c.Security.secured() {
		_, w, err := c.Security.files().Try(cmp.Or(c.Cluster.NodeID, c.Cluster.defaultID()))
		warnings, errs = w, append(errs, err)
	}
	if c.Backup.enabled() {
		_, err := backup.ReadKeyFile("backup: keyFile", c.Backup.KeyFile)
		errs = append(errs, err)
	}
	return warnings, errs
}
