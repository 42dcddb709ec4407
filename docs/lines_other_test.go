//go:build !linux

package docs_test

import "testing"

func TestPages_CommandsPrintWhatPagesShow(t *testing.T) {
	t.Skip("the lines of the documentation are typed in namespaces of Linux")
}
