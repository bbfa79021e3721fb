<#
.SYNOPSIS
Makes flanneld, kubelet and kube-proxy services, so that they run after a reboot. Run start.ps1 first.

.DESCRIPTION
flanneld and kubelet start with the system. kube-proxy is started by the task flannel-node, which runs boot.ps1 and so
start.ps1, because its source VIP may have changed. A kubelet or kube-proxy that is already a service is not changed.
#>
[CmdletBinding()]
param([string]$BaseDir = 'C:\k')

$BaseDir = $BaseDir.TrimEnd('\')
$global:LASTEXITCODE = 1 # stays so if flanneld.exe cannot be run
& (Join-Path $BaseDir 'flanneld.exe') node start --services "--base-dir=$BaseDir"
$status = $LASTEXITCODE
if ($status -eq 2) { exit $status } # there are no parameters of an earlier run

$arguments = "-NoProfile -NonInteractive -ExecutionPolicy Bypass -File `"$PSScriptRoot\boot.ps1`" -BaseDir `"$BaseDir`""
$task = @{
    Action    = New-ScheduledTaskAction -Execute 'powershell.exe' -Argument $arguments
    # Without a time limit, because boot.ps1 retries until it succeeds.
    Settings  = New-ScheduledTaskSettingsSet -ExecutionTimeLimit (New-TimeSpan -Seconds 0) -MultipleInstances IgnoreNew
    Trigger   = New-ScheduledTaskTrigger -AtStartup
    Principal = New-ScheduledTaskPrincipal -UserId 'SYSTEM' -LogonType ServiceAccount -RunLevel Highest
}
$null = Register-ScheduledTask -TaskName 'flannel-node' -Force -ErrorAction Stop @task
exit $status
