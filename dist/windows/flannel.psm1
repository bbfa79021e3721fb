# What start.ps1, stop.ps1, reset.ps1, install-services.ps1 and kube-proxy.ps1 share. What there is to know of networks is
# in flanneld.exe; here are only parameters, processes and services. Windows PowerShell 5.1, which every Windows Server
# has, must understand all of it.

Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'

# What we say of services that we made, by which we know them again.
$script:Mark = 'Made by install-services.ps1 of flannel'

function Write-Step([string]$Text) {
    Write-Host ('{0:HH:mm:ss}  {1}' -f (Get-Date), $Text)
}

function Assert-Administrator {
    $me = New-Object Security.Principal.WindowsPrincipal([Security.Principal.WindowsIdentity]::GetCurrent())
    if (-not $me.IsInRole([Security.Principal.WindowsBuiltInRole]::Administrator)) {
        throw 'This takes an elevated shell: start PowerShell by "Run as administrator".'
    }
}

function Assert-File([string]$Path, [string]$Hint) {
    if (-not (Test-Path -LiteralPath $Path -PathType Leaf)) {
        throw "$Path is missing. $Hint"
    }
}

# Without a byte order mark, which Set-Content of PowerShell 5.1 would write before UTF-8.
function Write-Text([string]$Path, [string]$Text) {
    $null = New-Item -ItemType Directory -Force -Path (Split-Path -Parent $Path)
    [IO.File]::WriteAllText($Path, $Text)
}

function Read-Json([string]$Path) {
    [IO.File]::ReadAllText($Path) | ConvertFrom-Json
}

# The rules by which programs take their command line apart: Start-Process and services join words without any.
function Join-Arguments([string[]]$Arguments) {
    $quoted = foreach ($word in $Arguments) {
        if ($word -ne '' -and $word -notmatch '[\s"]') { $word; continue }
        '"' + ($word -replace '(\\*)"', '$1$1\"' -replace '(\\+)$', '$1$1') + '"'
    }
    $quoted -join ' '
}

# Runs flanneld.exe and answers its exit status; what it says is on the console.
function Invoke-Flanneld([string]$Flanneld, [string[]]$Arguments) {
    Write-Step ('flanneld.exe ' + (Join-Arguments $Arguments))
    & $Flanneld @Arguments | Out-Host
    $LASTEXITCODE
}

# Likewise, and it must succeed.
function Assert-Flanneld([string]$Flanneld, [string[]]$Arguments) {
    $code = Invoke-Flanneld $Flanneld $Arguments
    if ($code -ne 0) {
        throw "flanneld.exe ended with status $code; what it says above is the reason. Run this script again when that is mended."
    }
}

# The daemon's own words: an empty text when it is ready, else why not.
function Get-Unreadiness([int]$Port) {
    $request = [Net.WebRequest]::Create("http://127.0.0.1:$Port/readyz")
    $request.Timeout = 5000
    $request.Proxy = $null
    try {
        $request.GetResponse().Close()
        return ''
    } catch {
        $problem = $_.Exception
        while ($problem -and $problem -isnot [Net.WebException]) { $problem = $problem.InnerException }
        if (-not $problem) { return $_.Exception.Message }
        if (-not $problem.Response) { return "no answer on port $Port yet: $($problem.Message)" }
        $reader = New-Object IO.StreamReader($problem.Response.GetResponseStream())
        try { return $reader.ReadToEnd().Trim() } finally { $reader.Close() }
    }
}

# Waits for the daemon, says what it waits for whenever that changes and once a minute, and gives up at some time.
# Alive tells whether the daemon runs: the wait for one that ended is over at once.
function Wait-Flanneld([int]$Port, [int]$Minutes, [scriptblock]$Alive) {
    $end = (Get-Date).AddMinutes($Minutes)
    $said = ''
    $at = Get-Date
    while ($true) {
        $reason = Get-Unreadiness $Port
        if ($reason -eq '') { Write-Step 'flanneld is ready'; return }
        if ($reason -ne $said -or ((Get-Date) - $at).TotalSeconds -ge 60) {
            Write-Step "waiting for flanneld: $reason"
            $said = $reason
            $at = Get-Date
        }
        if (-not (& $Alive)) { throw "flanneld ended while this waited for it. The last that it said: $reason" }
        if ((Get-Date) -gt $end) { throw "flanneld is not ready after $Minutes minutes: $reason" }
        Start-Sleep -Seconds 2
    }
}

# What flanneld knows of kube-proxy's source VIP: needed, sourceVIP, network, dsr.
function Get-SourceVip([string]$Flanneld) {
    $answer = & $Flanneld source-vip --json
    if ($LASTEXITCODE -ne 0) { throw "flanneld.exe source-vip: $($answer -join ' ')" }
    $answer -join "`n" | ConvertFrom-Json
}

# "Kubernetes v1.33.1" as a version.
function Get-KubernetesVersion([string]$Program) {
    $text = (& $Program --version) -join ' '
    if ($text -notmatch 'v(\d+)\.(\d+)') { throw "$Program --version says `"$text`", which is no version" }
    [version]"$($Matches[1]).$($Matches[2])"
}

# kube-proxy's flags. Vip is the answer of Get-SourceVip. An HNS that cannot do DSR makes kube-proxy end if it shall; up to
# Kubernetes 1.32 DSR has a feature gate, from 1.34 on that is locked. WinOverlay has been on since 1.20.
function Get-KubeProxyArguments($Vip, [version]$Version, [string]$NetworkName, [string]$NodeName, [string]$KubeConfig,
    [string]$ClusterCIDR, [string]$FeatureGates) {
    $gates = @($FeatureGates -split ',' | Where-Object { $_ })
    if ($Vip.dsr -and $Version -lt [version]'1.33') { $gates += 'WinDSR=true' }
    $all = @(
        '--v=2'
        '--proxy-mode=kernelspace'
        "--hostname-override=$NodeName" # else kube-proxy takes local endpoints for remote ones, and deletes them
        "--kubeconfig=$KubeConfig"
        "--cluster-cidr=$ClusterCIDR"
        "--network-name=$NetworkName"
        "--enable-dsr=$(([string][bool]$Vip.dsr).ToLower())"
    )
    if ($Vip.needed) { $all += "--source-vip=$($Vip.sourceVIP)" } else { $all += "--root-hnsendpoint-name=${NetworkName}_ep" }
    if ($gates) { $all += "--feature-gates=$($gates -join ',')" }
    $all
}

# The HNS network that the configuration asks for.
function Get-NetworkName([string]$NetConf) {
    $backend = (Read-Json $NetConf).Backend
    $has = @($backend.PSObject.Properties | ForEach-Object { $_.Name })
    if ($has -contains 'Name') { return $backend.Name }
    if ($backend.Type -eq 'host-gw') { return 'cbr0' }
    if ($has -contains 'VNI') { return "flannel.$($backend.VNI)" }
    'flannel.4096'
}

function Get-RecordPath([string]$BaseDir, [string]$Name) { Join-Path $BaseDir "run\$Name.json" }

# The process that we started under this name, if it still runs; another one may have got its number.
function Get-OwnProcess([string]$BaseDir, [string]$Name) {
    $path = Get-RecordPath $BaseDir $Name
    if (-not (Test-Path -LiteralPath $path)) { return $null }
    $record = Read-Json $path
    $process = Get-Process -Id $record.id -ErrorAction SilentlyContinue
    if ($process -and $process.StartTime.ToFileTimeUtc() -eq $record.started) {
        return $process | Add-Member -NotePropertyName CommandText -NotePropertyValue $record.command -PassThru
    }
    $null
}

function Get-OwnService([string]$Name) {
    Get-CimInstance -ClassName Win32_Service -Filter "Name='$Name'" | Where-Object { $_.Description -eq $script:Mark }
}

function Test-Component([string]$BaseDir, [string]$Name) {
    if (Get-OwnProcess $BaseDir $Name) { return $true }
    $service = Get-Service -Name $Name -ErrorAction SilentlyContinue
    [bool]($service -and $service.Status -eq 'Running')
}

function Stop-Component([string]$BaseDir, [string]$Name) {
    if (Get-OwnService $Name) { Stop-Service -Name $Name -Force; Write-Step "stopped the service $Name" }
    $process = Get-OwnProcess $BaseDir $Name
    if ($process) {
        Stop-Process -InputObject $process -Force
        $null = $process.WaitForExit(10000)
        Write-Step "stopped $Name"
    }
    Remove-Item -LiteralPath (Get-RecordPath $BaseDir $Name) -ErrorAction SilentlyContinue
}

# Makes a service of ours be as it shall and run.
function Start-OwnService([string]$Name, [string]$Program, [string[]]$Arguments, [string]$LogDir, [string]$StartMode) {
    $words = @($Program, '--windows-service') + $Arguments
    # A service has no stderr; Kubernetes brings this program to keep what it says.
    $runner = Join-Path (Split-Path -Parent $Program) 'kube-log-runner.exe'
    if (Test-Path -LiteralPath $runner) { $words = @($runner, "-log-file=$LogDir\$Name.log") + $words }
    $command = Join-Arguments $words
    $own = Get-OwnService $Name
    if (-not $own) {
        $null = New-Service -Name $Name -BinaryPathName $command -Description $script:Mark -StartupType $StartMode
        & sc.exe failure $Name reset= 600 actions= restart/5000/restart/30000 | Out-Null
        Write-Step "made the service $Name"
    } elseif ($own.PathName -ne $command) {
        $null = Invoke-CimMethod -InputObject $own -MethodName Change -Arguments @{ PathName = $command }
        Stop-Service -Name $Name -Force
        Write-Step "changed the service $Name"
    }
    Start-Service -Name $Name
}

# Makes kubelet, kube-proxy or flanneld run with these arguments: as a service of ours, or as a process in the background
# that writes to LogDir. One that somebody else made a service of is only started; one that runs otherwise is not touched.
function Start-Component([string]$BaseDir, [string]$Name, [string]$Program, [string[]]$Arguments, [string]$LogDir, [bool]$AsService,
    [string]$StartMode = 'Automatic') {
    if ((Get-Service -Name $Name -ErrorAction SilentlyContinue) -and -not (Get-OwnService $Name)) {
        Start-Service -Name $Name
        Write-Step "the service $Name runs; its arguments are left to whoever made it"
        return
    }
    if ($AsService) {
        Start-OwnService $Name $Program $Arguments $LogDir $StartMode
        return
    }
    $command = Join-Arguments (@($Program) + $Arguments)
    $process = Get-OwnProcess $BaseDir $Name
    if ($process -and $process.CommandText -eq $command) { Write-Step "$Name runs already"; return }
    if ($process) { Stop-Component $BaseDir $Name }
    $other = Get-Process -Name $Name -ErrorAction SilentlyContinue | Select-Object -First 1
    if ($other) { throw "$Name runs already, as process $($other.Id), and this script did not start it: stop it first." }
    foreach ($log in "$LogDir\$Name.log", "$LogDir\$Name.out.log") { # the one before may say why it ended
        if (Test-Path -LiteralPath $log) { Move-Item -LiteralPath $log -Destination "$log.1" -Force }
    }
    $process = Start-Process -FilePath $Program -ArgumentList (Join-Arguments $Arguments) -WindowStyle Hidden -PassThru `
        -RedirectStandardError (Join-Path $LogDir "$Name.log") -RedirectStandardOutput (Join-Path $LogDir "$Name.out.log")
    Write-Text (Get-RecordPath $BaseDir $Name) (@{ id = $process.Id; started = $process.StartTime.ToFileTimeUtc(); command = $command } | ConvertTo-Json)
    Write-Step "started $Name; it writes to $LogDir\$Name.log"
}

Export-ModuleMember -Function *
